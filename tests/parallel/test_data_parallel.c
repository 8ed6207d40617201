/* test_data_parallel.c - tern_data_parallel on 1 to 4 groups of cores: the results of one device, PyTorch's
 * rules for chunks and nested values, and errors that name the replica. */
#include "ledger.h"

#include "parallel/data_parallel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { features = 12, classes = 5, steps = 4, devices_max = 4 };

/* ---- devices ---- */

/* If there are more groups than cores, they share cores. */
static void open_devices(tern_device **devices, int count)
{
    tern_error err = {0};
    for (int i = 0; i < count; i++) devices[i] = tern_device_open(i % 2 ? "cpu:0" : "cpu:0-0", &err);
    assert_ok(err);
}

static void close_devices(tern_device **devices, int count)
{
    for (int i = 0; i < count; i++) tern_device_close(devices[i]);
}

static tern_data_parallel *new_parallel(tern_module *net, tern_device **devices, int count, tern_error *err)
{
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    opts.devices = devices;
    opts.device_count = count;
    return tern_data_parallel_new(net, &opts, err);
}

/* ---- the same results as one device ---- */

typedef struct run {
    double loss[steps];
    double weight[4096];
    int count, asked;
} run;

static void read_parameters(const tern_module *net, run *out)
{
    out->count = 0;
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *t = tern_state_get(net, i).tensor;
        for (int64_t k = 0; k < tern_tensor_count(t); k++)
            out->weight[out->count++] = tern__view_get(&t->view, k);
    }
}

/* `rows` per batch; two batches are accumulated before each step. count 0: one device, without data
 * parallel. */
static void train(int count, int rows, tern_dtype region, run *out)
{
    tern_error err = {0};
    ledger books = {0};
    tern_device *devices[devices_max];
    ledger_open(&books);
    open_devices(devices, count);
    tern_device *home = tern_device_open("cpu", &err);
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = tern_mlp_new((int64_t[]){features, 32, 16, classes}, 4, rng, &err);
    tern_data_parallel *parallel = count ? new_parallel(net, devices, count, &err) : NULL;
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 0.1;
    opts.momentum = 0.5;
    tern_optim *sgd = tern_sgd_new(net, &opts, &err);
    tern_scope *scope = tern_scope_new(home, NULL, &err);
    for (int i = 0; i < steps; i++) {
        int before = books.requests;
        for (int micro = 0; micro < 2; micro++) {
            int64_t label[64];
            for (int r = 0; r < rows; r++) label[r] = (r + i) % classes;
            tern_tensor *x = tern_randn(scope, rng, 2, (int64_t[]){rows, features});
            tern_autocast_set(scope, region);
            tern_tensor *y =
                parallel ? tern_data_parallel_forward(parallel, scope, x) : tern_forward(net, scope, x);
            if (parallel) y = tern_to(scope, y, home);
            tern_tensor *t = tern_tensor_from(scope, label, TERN_I64, 1, (int64_t[]){rows});
            assert_int_equal(tern_tensor_dtype(y), region);
            tern_tensor *loss = tern_cross_entropy(scope, y, t, NULL);
            tern_autocast_set(scope, TERN_F32);
            out->loss[i] = tern_item(loss);
            tern_backward(scope, loss);
        }
        tern_optim_step(sgd, scope);
        tern_scope_end(scope, &err);
        assert_ok(err);
        out->asked = books.requests - before;
    }
    read_parameters(net, out);
    tern_scope_free(scope);
    tern_optim_free(sgd);
    tern_data_parallel_free(parallel);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(home);
    close_devices(devices, count);
    ledger_close(&books);
}

/* Whole and uneven chunks, and fewer rows than devices. */
static void the_numbers_of_one_device(void **state)
{
    (void)state;
    static const int rows[] = {24, 23, 7, 3, 1};
    static run one, some;
    for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++) {
        train(0, rows[k], TERN_F32, &one);
        for (int count = 1; count <= devices_max; count++) {
            train(count, rows[k], TERN_F32, &some);
            assert_int_equal(some.count, one.count);
            for (int i = 0; i < steps; i++) assert_true(fabs(some.loss[i] - one.loss[i]) < 1e-5);
            for (int i = 0; i < one.count; i++) assert_true(fabs(some.weight[i] - one.weight[i]) < 1e-5);
            assert_int_equal(some.asked, 0);
        }
    }
}

/* The forward is the same row by row. A gradient is rounded once in every replica, by at most half a step of
 * 2^-7 (bf16) or 2^-10 times 4, and the weights move by the rate times that. */
static void also_under_autocast(void **state)
{
    (void)state;
    static run one, some;
    const tern_dtype regions[] = {TERN_BF16, TERN_F16};
    const double tolerance[] = {0.1 * 4 / 256, 0.1 * 4 / 2048};
    for (int k = 0; k < 2; k++) {
        train(0, 23, regions[k], &one);
        for (int count = 1; count <= devices_max; count++) {
            train(count, 23, regions[k], &some);
            assert_true(fabs(some.loss[0] - one.loss[0]) < 1e-6);
            for (int i = 1; i < steps; i++) assert_true(fabs(some.loss[i] - one.loss[i]) < tolerance[k]);
            for (int i = 0; i < one.count; i++)
                assert_true(fabs(some.weight[i] - one.weight[i]) < tolerance[k]);
            assert_int_equal(some.asked, 0);
        }
    }
}

/* ---- a net that records its calls ---- */

typedef struct probe {
    tern_module base;
    tern_tensor *scale, *count; /* a parameter of one element; a buffer */
    tern_module *norm;
    int fails_from_row; /* E_RANGE on the replica whose first value is at least this; < 0: never */
} probe;

static tern_tensor *probe_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    probe *self = (probe *)module;
    if (self->fails_from_row >= 0 && tern__view_get(&x->view, 0) >= self->fails_from_row)
        return tern_select(scope, x, 0, 1000);
    return tern_mul(scope, x, self->scale);
}

typedef struct fixture {
    tern_device *devices[devices_max];
    tern_device *home;
    tern_scope *scope;
    probe net;
    tern_data_parallel *parallel;
    int count;
} fixture;

static void open_fixture(fixture *f, int count)
{
    tern_error err = {0};
    *f = (fixture){.count = count, .home = tern_device_open("cpu", &err)};
    open_devices(f->devices, count);
    f->scope = tern_scope_new(f->home, NULL, &err);
    tern_module_init(&f->net.base, "probe", probe_forward, &err);
    f->net.fails_from_row = -1;
    f->net.scale = tern_parameter_add(&f->net.base, "scale", TERN_F32, 0, NULL, &err);
    f->net.norm = tern_module_add(&f->net.base, "norm", tern_batch_norm1d_new(1, NULL, &err), &err);
    tern_tensor_write(f->net.scale, &(float){3}, sizeof(float), &err);
    f->parallel = new_parallel(&f->net.base, f->devices, count, &err);
    assert_ok(err);
}

static void close_fixture(fixture *f)
{
    tern_data_parallel_free(f->parallel);
    tern_scope_free(f->scope);
    tern_module_release(&f->net.base);
    tern_device_close(f->home);
    close_devices(f->devices, f->count);
}

static tern_tensor *counting(tern_scope *scope, int64_t rows, int64_t columns)
{
    float data[256];
    for (int i = 0; i < rows * columns; i++) data[i] = (float)(i / columns);
    return tern_tensor_from(scope, data, TERN_F32, 2, (int64_t[]){rows, columns});
}

static void end_well(fixture *f)
{
    tern_error err = {0};
    tern_scope_end(f->scope, &err);
    assert_ok(err);
}

/* ---- chunks: the rows of each replica, compared with torch.chunk ---- */

static tern_value report_rows(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)module;
    (void)ctx;
    double rows = (double)tern_tensor_shape(input.tensor)[0];
    return (tern_value){.tensor = tern_full(scope, TERN_F32, 1, (int64_t[]){1}, rows)};
}

static void chunks_are_torchs(void **state)
{
    (void)state;
    static const struct {
        int devices, rows, parts[4], count;
    } cases[] = {{4, 8, {2, 2, 2, 2}, 4}, {4, 7, {2, 2, 2, 1}, 4}, {4, 5, {2, 2, 1}, 3}, {4, 3, {1, 1, 1}, 3},
                 {3, 4, {2, 2}, 2},       {2, 1, {1}, 1},          {1, 6, {6}, 1},       {3, 0, {0}, 1}};
    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        fixture f;
        open_fixture(&f, cases[k].devices);
        tern_value input = {.tensor = counting(f.scope, cases[k].rows, 2)};
        tern_tensor *y = tern_data_parallel_apply(f.parallel, f.scope, report_rows, input, NULL).tensor;
        assert_non_null(y);
        assert_int_equal(tern_tensor_count(y), cases[k].count);
        for (int i = 0; i < cases[k].count; i++)
            assert_true(tern__view_get(&y->view, i) == cases[k].parts[i]);
        end_well(&f);
        close_fixture(&f);
    }
}

/* ---- nested inputs and results ---- */

/* Maps {"a": .., "b": ..} to {"sum": a + b, "list": [scaled a, [b]]}; ctx is shared. */
static tern_value nested(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    tern_value *top = tern_value_list(scope, 2), *list = tern_value_list(scope, 2),
               *inner = tern_value_list(scope, 1);
    if (!top || !list || !inner || strcmp(input.items[0].name, "a") != 0) return (tern_value){0};
    tern_tensor *a = input.items[0].tensor, *b = input.items[1].items[0].tensor;
    inner[0] = (tern_value){.tensor = b};
    list[0] = (tern_value){.tensor = tern_forward(module, scope, a)};
    list[1] = (tern_value){.items = inner, .count = 1};
    top[0] = (tern_value){.name = "sum",
                          .tensor = tern_mul(scope, tern_add(scope, a, b),
                                             tern_full(scope, TERN_F32, 0, NULL, *(double *)ctx))};
    top[1] = (tern_value){.name = "list", .items = list, .count = 2};
    return (tern_value){.items = top, .count = 2};
}

static void values_keep_their_nesting(void **state)
{
    (void)state;
    for (int count = 1; count <= 3; count++) {
        fixture f;
        open_fixture(&f, count);
        double factor = 10;
        tern_value list[1] = {{.tensor = counting(f.scope, 5, 1)}};
        tern_value items[2] = {{.name = "a", .tensor = counting(f.scope, 5, 2)},
                               {.name = "b", .items = list, .count = 1}};
        tern_value input = {.items = items, .count = 2};
        tern_value y = tern_data_parallel_apply(f.parallel, f.scope, nested, input, &factor);
        assert_ok(*tern_scope_error(f.scope));
        assert_int_equal(y.count, 2);
        assert_string_equal(y.items[1].name, "list");
        const tern_tensor *sum = y.items[0].tensor, *scaled = y.items[1].items[0].tensor,
                          *same = y.items[1].items[1].items[0].tensor;
        assert_int_equal(tern_tensor_count(sum), 10);
        assert_int_equal(tern_tensor_count(same), 5);
        for (int i = 0; i < 5; i++) {
            assert_true(tern__view_get(&sum->view, 2 * i) == 20 * i);
            assert_true(tern__view_get(&scaled->view, 2 * i + 1) == 3 * i);
            assert_true(tern__view_get(&same->view, i) == i);
        }
        end_well(&f);
        close_fixture(&f);
    }
}

/* Results without dimensions become a vector; one device returns its result unchanged. */
static tern_value mean_of(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    tern_tensor *y = tern_forward(module, scope, input.tensor);
    return (tern_value){.tensor = tern_mean(scope, y)};
}

static void scalars_become_a_vector(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 2);
    tern_value input = {.tensor = counting(f.scope, 4, 1)};
    tern_tensor *y = tern_data_parallel_apply(f.parallel, f.scope, mean_of, input, NULL).tensor;
    assert_int_equal(tern_tensor_ndim(y), 1);
    assert_true(tern__view_get(&y->view, 0) == 1.5 && tern__view_get(&y->view, 1) == 7.5);
    tern_backward(f.scope, tern_sum(f.scope, y));
    assert_true(tern_item(tern_grad_get(f.net.scale)) == 0.5 + 2.5);
    end_well(&f);
    close_fixture(&f);
    open_fixture(&f, 1);
    input.tensor = counting(f.scope, 4, 1);
    y = tern_data_parallel_apply(f.parallel, f.scope, mean_of, input, NULL).tensor;
    assert_int_equal(tern_tensor_ndim(y), 0);
    end_well(&f);
    close_fixture(&f);
}

/* ---- gradients ---- */

/* The input's gradient passes through the chunks. A parameter used both before and in them gets its whole
 * gradient: d/ds sum(s (s x)) = 2 s sum(x). */
static void the_input_has_a_gradient(void **state)
{
    (void)state;
    for (int count = 1; count <= devices_max; count++) {
        fixture f;
        open_fixture(&f, count);
        tern_tensor *x = tern_mul(f.scope, counting(f.scope, 7, 3), f.net.scale);
        tern_tensor *y = tern_data_parallel_forward(f.parallel, f.scope, x);
        assert_ptr_equal(tern_tensor_device(y), f.devices[0]);
        tern_backward(f.scope, tern_sum(f.scope, y));
        assert_true(tern_item(tern_grad_get(f.net.scale)) == 2 * 3 * 3 * 21);
        end_well(&f);
        /* Without gradients nothing is kept. */
        tern_grad_enabled_set(f.scope, false);
        y = tern_data_parallel_forward(f.parallel, f.scope, counting(f.scope, 7, 3));
        assert_false(tern_requires_grad_get(y));
        tern_grad_enabled_set(f.scope, true);
        end_well(&f);
        close_fixture(&f);
    }
}

static tern_value twice(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    tern_value *list = tern_value_list(scope, 2);
    list[0] = list[1] = (tern_value){.tensor = tern_forward(module, scope, input.tensor)};
    return (tern_value){.items = list, .count = 2};
}

/* Its gradient is the sum over both places: d/ds (sum(s x) + 2 sum(s x)) = 3 sum(x). */
static void a_result_may_be_in_two_places(void **state)
{
    (void)state;
    fixture f;
    size_t bytes = 0;
    open_fixture(&f, 2);
    for (int i = 0; i < steps; i++) {
        tern_value input = {.tensor = counting(f.scope, 4, 1)};
        tern_value y = tern_data_parallel_apply(f.parallel, f.scope, twice, input, NULL);
        tern_tensor *second = tern_sum(f.scope, y.items[1].tensor);
        tern_tensor *both = tern_add(f.scope, second, second);
        tern_backward(f.scope, tern_add(f.scope, tern_sum(f.scope, y.items[0].tensor), both));
        assert_true(tern_item(tern_grad_get(f.net.scale)) == 3 * 6);
        tern_zero_grad(&f.net.base);
        end_well(&f);
        size_t taken = tern_data_parallel_stats(f.parallel, 1).bytes;
        assert_true(i < 2 || taken == bytes);
        bytes = taken;
    }
    close_fixture(&f);
}

static tern_value checkpoint(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    return (tern_value){.tensor = tern_checkpoint(module, scope, input.tensor)};
}

/* The parameters are on the first device; each replica recomputes its part. */
static void replicas_compute_again(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    open_fixture(&f, 3);
    tern_module_to(&f.net.base, f.devices[0], &err);
    tern_value input = {.tensor = counting(f.scope, 7, 1)};
    tern_value y = tern_data_parallel_apply(f.parallel, f.scope, checkpoint, input, NULL);
    tern_backward(f.scope, tern_sum(f.scope, y.tensor));
    end_well(&f);
    assert_true(tern_item(tern_grad_get(f.net.scale)) == 21);
    close_fixture(&f);
}

/* Only replica 0 updates running statistics. */
static tern_value normalise(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    return (tern_value){.tensor = tern_forward(((probe *)module)->norm, scope, input.tensor)};
}

static void statistics_are_replica_0s(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 2);
    tern_value input = {.tensor = counting(f.scope, 8, 1)}; /* replica 0 has 0, 1, 2, 3 */
    tern_tensor *y = tern_data_parallel_apply(f.parallel, f.scope, normalise, input, NULL).tensor;
    assert_true(fabs(tern__view_get(&y->view, 0) - tern__view_get(&y->view, 4)) < 1e-6);
    end_well(&f);
    assert_true(fabs(tern_item(tern_state_find(f.net.norm, "running_mean")) - 0.15) < 1e-6);
    assert_true(tern_item(tern_state_find(f.net.norm, "num_batches_tracked")) == 1);
    close_fixture(&f);
}

/* ---- errors ---- */

static void expect(fixture *f, int code, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_scope_end(f->scope, &err), code);
    if (!strstr(err.text, text)) fail_msg("\"%s\" has no \"%s\"", err.text, text);
}

static tern_value uneven(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    (void)module;
    bool is_first = tern__view_get(&input.tensor->view, 0) == 0;
    tern_value *list = tern_value_list(scope, 2);
    list[0] = list[1] = input;
    return (tern_value){.items = list, .count = is_first ? 2 : 1};
}

static tern_value take_from_outside(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)module;
    return (tern_value){.tensor = tern_mul(scope, input.tensor, tern_detach(scope, ctx))};
}

static void errors_name_the_replica(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 3);
    f.net.fails_from_row = 2;
    assert_null(tern_data_parallel_forward(f.parallel, f.scope, counting(f.scope, 6, 1)));
    expect(&f, TERN_E_RANGE, "replica 1 on cpu:0: select: index 1000");
    f.net.fails_from_row = -1;
    tern_value input = {.tensor = counting(f.scope, 6, 1)};
    tern_data_parallel_apply(f.parallel, f.scope, uneven, input, NULL);
    expect(&f, TERN_E_MISMATCH, "replica 1's results are nested differently from replica 0's");
    assert_null(tern_data_parallel_forward(f.parallel, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 1)));
    expect(&f, TERN_E_SHAPE, "input 0 () has no dimension 0 to split along");
    input.tensor = counting(f.scope, 6, 1);
    tern_data_parallel_apply(f.parallel, f.scope, take_from_outside, input,
                             tern_full(f.scope, TERN_F32, 0, NULL, 1));
    expect(&f, TERN_E_INVALID, "replica 0 on cpu:0-0: tern_mul: input 0 is on cpu:0-0, but input 1 on cpu");
    /* After all these errors it still works. */
    assert_non_null(tern_data_parallel_forward(f.parallel, f.scope, counting(f.scope, 6, 1)));
    end_well(&f);
    close_fixture(&f);
}

static tern_value nest(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)module;
    return (tern_value){.tensor = tern_data_parallel_forward(ctx, scope, input.tensor)};
}

static void neither_nested_nor_shared_between_steps(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f, 2);
    tern_value input = {.tensor = counting(f.scope, 6, 1)};
    tern_data_parallel_apply(f.parallel, f.scope, nest, input, f.parallel);
    expect(&f, TERN_E_UNSUPPORTED, "data parallel inside a replica");
    tern_scope *other = tern_scope_new(f.home, NULL, &err);
    assert_non_null(tern_data_parallel_forward(f.parallel, f.scope, counting(f.scope, 6, 1)));
    assert_null(tern_data_parallel_forward(f.parallel, other, counting(other, 6, 1)));
    assert_int_equal(tern_scope_end(other, &err), TERN_E_STATE);
    assert_non_null(strstr(err.text, "in the middle of another scope's step"));
    end_well(&f);
    err = (tern_error){0};
    assert_non_null(tern_data_parallel_forward(f.parallel, other, counting(other, 6, 1)));
    assert_int_equal(tern_scope_end(other, &err), TERN_OK);
    tern_scope_free(other);
    close_fixture(&f);
}

static void expect_refused(tern_module *net, const tern_data_parallel_opts *opts, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_data_parallel_new(net, opts, &err));
    assert_int_equal(err.code, code);
    if (!strstr(err.text, text)) fail_msg("\"%s\" has no \"%s\"", err.text, text);
}

static void wrong_devices_are_refused(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f, 2);
    tern_device *twice[] = {f.devices[1], f.devices[1]}, *whole[] = {f.devices[0], f.home};
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    opts.device_count = 2;
    opts.devices = twice;
    expect_refused(&f.net.base, &opts, TERN_E_INVALID,
                   "devices 0 and 1 are the same: open cpu:0 once for each");
    opts.devices = whole;
    expect_refused(&f.net.base, &opts, TERN_E_INVALID,
                   "device 1 is cpu: expected a group of cores as \"cpu:1\"");
    opts.device_count = 0;
    expect_refused(&f.net.base, &opts, TERN_E_RANGE, "expected at least 1 device");
    opts.device_count = -1;
    expect_refused(&f.net.base, &opts, TERN_E_RANGE, "expected a device_count from 0");
    expect_refused(NULL, NULL, TERN_E_INVALID, "the module is NULL");
    opts.device_count = 2;
    opts.devices = f.devices;
    tern_module_to(f.net.norm, f.devices[1], &err);
    expect_refused(&f.net.base, &opts, TERN_E_INVALID,
                   "the module must have its parameters and buffers on cpu:0-0, the first device, but "
                   "\"norm.weight\" is on cpu:0");
    close_fixture(&f);
}

/* By default there is one replica per core; also checks the cost of each. */
static void defaults_and_costs(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    open_fixture(&f, 1);
    tern_data_parallel *parallel = tern_data_parallel_new(&f.net.base, NULL, &err);
    assert_ok(err);
    int count = tern_data_parallel_count(parallel);
    assert_int_equal(count, tern__device_cores());
    tern_tensor *y = tern_data_parallel_forward(parallel, f.scope, counting(f.scope, 2 * count, 1));
    tern_backward(f.scope, tern_sum(f.scope, y));
    for (int i = 0; i < count; i++) {
        tern_replica_stats stats = tern_data_parallel_stats(parallel, i);
        char name[32];
        snprintf(name, sizeof(name), "cpu:%d", i);
        assert_string_equal(stats.device, name);
        assert_true(stats.bytes > 0 && stats.forward_s > 0 && stats.backward_s > 0);
    }
    assert_null(tern_data_parallel_stats(parallel, count).device);
    tern_data_parallel_print(parallel);
    end_well(&f);
    tern_data_parallel_free(parallel);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_of_one_device),
        cmocka_unit_test(also_under_autocast),
        cmocka_unit_test(chunks_are_torchs),
        cmocka_unit_test(values_keep_their_nesting),
        cmocka_unit_test(scalars_become_a_vector),
        cmocka_unit_test(the_input_has_a_gradient),
        cmocka_unit_test(a_result_may_be_in_two_places),
        cmocka_unit_test(replicas_compute_again),
        cmocka_unit_test(statistics_are_replica_0s),
        cmocka_unit_test(errors_name_the_replica),
        cmocka_unit_test(neither_nested_nor_shared_between_steps),
        cmocka_unit_test(wrong_devices_are_refused),
        cmocka_unit_test(defaults_and_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
