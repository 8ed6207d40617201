/* test_checkpoint.c - tern_checkpoint: the bits of tern_forward with less memory, nested checkpoints, and
 * errors. */
#include "ledger.h"
#include "nn/scored.h"

#include "device/device.h"

#include <string.h>

enum { rows = 12, channels = 16, side = 8, classes = 5, pairs = 6, steps = 4 };

typedef enum checkpoints { PLAIN, SEGMENTS, NESTED } checkpoints;

typedef tern_tensor *(*call_fn)(tern_module *module, tern_scope *scope, tern_tensor *x);

/* Two blocks of convolution, batch norm, ReLU and dropout. */
typedef struct pair {
    tern_module base;
    tern_module *block[2];
    checkpoints mode;
} pair;

/* Pairs, and one of two heads. */
typedef struct tower {
    tern_module base;
    pair pair[pairs];
    tern_module *head[2];
    int which;
    checkpoints mode;
} tower;

static tern_tensor *pair_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const pair *self = (pair *)module;
    call_fn call = self->mode == NESTED ? tern_checkpoint : tern_forward;
    return tern_forward(self->block[1], scope, call(self->block[0], scope, x));
}

static tern_tensor *tower_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    tower *self = (tower *)module;
    call_fn call = self->mode == PLAIN ? tern_forward : tern_checkpoint;
    for (int i = 0; i < pairs; i++) x = call(&self->pair[i].base, scope, x);
    return call(self->head[self->which], scope, tern_flatten(scope, x, 1));
}

static tern_module *new_block(tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts conv = tern_conv2d_defaults();
    conv.padding[0] = conv.padding[1] = 1;
    tern_module *block = tern_sequential_new(err);
    tern_sequential_add(block, tern_conv2d_new(channels, channels, 3, 3, &conv, rng, err), err);
    tern_sequential_add(block, tern_batch_norm2d_new(channels, NULL, err), err);
    tern_sequential_add(block, tern_relu_new(err), err);
    tern_sequential_add(block, tern_dropout_new(0.25, err), err);
    return block;
}

static void make_tower(tower *net, checkpoints mode, tern_error *err)
{
    tern_rng *rng = tern_rng_new(5, err);
    *net = (tower){.mode = mode};
    tern_module_init(&net->base, "tower", tower_forward, err);
    for (int i = 0; i < pairs; i++) {
        char name[8] = {'p', (char)('0' + i)};
        tern_module_init(&net->pair[i].base, "pair", pair_forward, err);
        net->pair[i].mode = mode;
        net->pair[i].block[0] = tern_module_add(&net->pair[i].base, "a", new_block(rng, err), err);
        net->pair[i].block[1] = tern_module_add(&net->pair[i].base, "b", new_block(rng, err), err);
        tern_module_add(&net->base, name, &net->pair[i].base, err);
    }
    for (int i = 0; i < 2; i++)
        net->head[i] = tern_module_add(&net->base, i ? "other" : "head",
                                       tern_linear_new(channels * side * side, classes, NULL, rng, err), err);
    tern_rng_free(rng);
}

typedef struct result {
    char state[1 << 20];
    size_t bytes;     /* the state's */
    size_t taken;     /* by the device                     */
    int last_asked;   /* requests for memory, last step    */
    bool none[steps]; /* the head that was not used has no gradient */
} result;

static void read_state(const tower *net, result *out, tern_error *err)
{
    for (int i = 0; i < tern_state_count(&net->base); i++) {
        const tern_tensor *t = tern_state_get(&net->base, i).tensor;
        size_t bytes = (size_t)tern_tensor_count(t) * tern_dtype_bytes(tern_tensor_dtype(t));
        tern_tensor_read(t, out->state + out->bytes, bytes, err);
        out->bytes += bytes;
    }
}

/* Backward is outside of the autocast region, where checkpoints compute again as inside of it. */
static void step(tower *net, tern_scope *scope, tern_dtype region, tern_rng *rng, tern_optim *sgd, bool *none)
{
    int64_t label[rows];
    for (int i = 0; i < rows; i++) label[i] = i % classes;
    for (int micro = 0; micro < 2; micro++) { /* gradients of two backwards are added up */
        tern_tensor *x = tern_randn(scope, rng, 4, (int64_t[]){rows, channels, side, side});
        tern_autocast_set(scope, region);
        tern_tensor *y = tern_forward(&net->base, scope, x);
        tern_tensor *t = tern_tensor_from(scope, label, TERN_I64, 1, (int64_t[]){rows});
        tern_tensor *loss = tern_cross_entropy(scope, y, t, NULL);
        tern_autocast_set(scope, TERN_F32);
        tern_backward(scope, loss);
    }
    *none = !tern_grad_get(tern_state_find(net->head[1 - net->which], "weight"));
    tern_optim_step(sgd, scope);
}

static void train(checkpoints mode, tern_dtype region, result *out)
{
    tern_error err = {0};
    ledger books = {0};
    memset(out, 0, sizeof(*out));
    ledger_open(&books);
    tower net;
    make_tower(&net, mode, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_rng *rng = tern_rng_new(6, &err);
    tern_optim *sgd = tern_sgd_new(&net.base, NULL, &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    tern_scope_seed(scope, 9, 0);
    for (int i = 0; i < steps; i++) {
        int before = books.requests;
        net.which = i % 2;
        step(&net, scope, region, rng, sgd, &out->none[i]);
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
        out->last_asked = books.requests - before;
    }
    read_state(&net, out, &err);
    out->taken = tern__device_bytes(device);
    tern_scope_free(scope);
    tern_optim_free(sgd);
    tern_rng_free(rng);
    tern_module_release(&net.base);
    tern_device_close(device);
    ledger_close(&books);
    assert_ok(err);
}

/* `share` of the memory is enough. */
static void compare_modes(tern_dtype region, double share)
{
    static result plain, other;
    train(PLAIN, region, &plain);
    assert_int_equal(plain.last_asked, 0);
    for (checkpoints p = SEGMENTS; p <= NESTED; p++) {
        train(p, region, &other);
        assert_int_equal(other.bytes, plain.bytes);
        assert_memory_equal(other.state, plain.state, plain.bytes);
        assert_memory_equal(other.none, plain.none, sizeof(plain.none));
        assert_true(other.none[0] && other.none[steps - 1]);
        assert_int_equal(other.last_asked, 0);
        print_message("mode %d: %zu of %zu bytes\n", p, other.taken, plain.taken);
        assert_true((double)other.taken < share * (double)plain.taken);
    }
}

static void same_bits_less_memory(void **state)
{
    (void)state;
    compare_modes(TERN_F32, 0.75);
}

static void also_under_autocast(void **state)
{
    (void)state;
    compare_modes(TERN_BF16, 0.8); /* what is saved is half as large, the casts of parameters stay */
    compare_modes(TERN_F16, 0.8);
}

/* ---- the input's gradient, and calls that are no more than their input ---- */

static tern_tensor *return_input(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    (void)scope;
    return x;
}

typedef struct scaled {
    tern_module base;
    tern_tensor *scale;
    tern_tensor *captured; /* or NULL */
} scaled;

static tern_tensor *scaled_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const scaled *self = (scaled *)module;
    tern_tensor *y = tern_mul(scope, x, self->scale);
    return self->captured ? tern_add(scope, y, self->captured) : y;
}

typedef struct fixture {
    tern_device *device;
    tern_scope *scope;
    scaled inner;
    tern_module identity;
} fixture;

static void open_fixture(fixture *f)
{
    tern_error err = {0};
    *f = (fixture){.device = tern_device_open("cpu", &err)};
    tern_device_threads_set(f->device, 1, &err); /* a second thread would only spin on a busy machine */
    f->scope = tern_scope_new(f->device, NULL, &err);
    tern_module_init(&f->inner.base, "scaled", scaled_forward, &err);
    f->inner.scale = tern_parameter_add(&f->inner.base, "scale", TERN_F32, 0, NULL, &err);
    tern_tensor_write(f->inner.scale, &(float){3}, sizeof(float), &err);
    tern_module_init(&f->identity, "identity", return_input, &err);
    assert_ok(err);
}

static void close_fixture(fixture *f)
{
    tern_scope_free(f->scope);
    tern_module_release(&f->identity);
    tern_module_release(&f->inner.base);
    tern_device_close(f->device);
}

/* d/ds (s (s 2)) through two checkpoints of the same parameter, one fed by the other. */
static void gradients_pass_through(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    x = tern_checkpoint(&f.inner.base, f.scope, x);
    x = tern_checkpoint(&f.identity, f.scope, x);
    x = tern_checkpoint(&f.inner.base, f.scope, x);
    assert_true(tern_item(x) == 18);
    assert_int_equal(tern_backward(f.scope, x), TERN_OK);
    assert_true(tern_item(tern_grad_get(f.inner.scale)) == 2 * 3 * 2);
    /* Without gradients it is a plain call. */
    tern_grad_enabled_set(f.scope, false);
    x = tern_checkpoint(&f.inner.base, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2));
    assert_true(tern_item(x) == 6 && !tern_requires_grad_get(x));
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    close_fixture(&f);
}

static void what_comes_from_elsewhere_is_refused(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    f.inner.captured = tern_mul(f.scope, x, f.inner.scale);
    assert_null(tern_checkpoint(&f.inner.base, f.scope, x));
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "an input from outside this replica or checkpoint wants a gradient"));
    /* Detached it is welcome. */
    x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    f.inner.captured = tern_detach(f.scope, tern_mul(f.scope, x, f.inner.scale));
    tern_backward(f.scope, tern_checkpoint(&f.inner.base, f.scope, x));
    assert_true(tern_item(tern_grad_get(f.inner.scale)) == 2);
    assert_null(tern_checkpoint(NULL, f.scope, x));
    err = (tern_error){0};
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    close_fixture(&f);
}

/* The sum of the gradients of one layer that is used twice under autocast, the second time by `call`. */
static double used_twice(fixture *f, tern_module *layer, call_fn call)
{
    tern_error err = {0};
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = tern_full(f->scope, TERN_F32, 2, (int64_t[]){2, 4}, 0.5);
    tern_tensor *y = call(layer, f->scope, tern_forward(layer, f->scope, x));
    tern_autocast_set(f->scope, TERN_F32);
    assert_int_equal(tern_backward(f->scope, tern_sum(f->scope, y)), TERN_OK);
    double sum = tern_item(tern_sum(f->scope, tern_grad_get(tern_state_get(layer, 0).tensor)));
    assert_int_equal(tern_scope_end(f->scope, &err), TERN_OK);
    tern_zero_grad(layer);
    return sum;
}

/* The first use's cast of the weight is kept, which must not hide the checkpoint's use. */
static void a_kept_cast_hides_no_use(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *layer = tern_linear_new(4, 4, NULL, rng, &err);
    assert_ok(err);
    assert_true(used_twice(&f, layer, tern_checkpoint) == used_twice(&f, layer, tern_forward));
    tern_module_free(layer);
    tern_rng_free(rng);
    close_fixture(&f);
}

/* ---- a module that behaves differently the second time ---- */

typedef struct forked {
    tern_module base;
    tern_tensor *first, *second;
    int calls, from; /* from this call on it takes the second one */
} forked;

static tern_tensor *forked_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    forked *self = (forked *)module;
    return tern_mul(scope, x, self->calls++ < self->from ? self->first : self->second);
}

static void open_forked(forked *net, int from, tern_error *err)
{
    *net = (forked){.from = from};
    tern_module_init(&net->base, "forked", forked_forward, err);
    net->first = tern_parameter_add(&net->base, "first", TERN_F32, 0, NULL, err);
    net->second = tern_parameter_add(&net->base, "second", TERN_F32, 0, NULL, err);
    assert_ok(*err);
}

static void expect_refusal(tern_scope *scope, tern_tensor *y, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_backward(scope, y), TERN_E_STATE);
    assert_int_equal(tern_scope_end(scope, &err), TERN_E_STATE);
    if (!strstr(err.text, text)) fail_msg("\"%s\" has no \"%s\"", err.text, text);
}

static void the_second_pass_uses_what_the_first_did(void **state)
{
    (void)state;
    fixture f;
    forked net;
    tern_error err = {0};
    open_fixture(&f);
    open_forked(&net, 1, &err);
    expect_refusal(f.scope, tern_checkpoint(&net.base, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2)),
                   "the parameter \"second\" was used only when it was computed again");
    net.from = net.calls + 2; /* the same both times */
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    assert_int_equal(tern_backward(f.scope, tern_checkpoint(&net.base, f.scope, x)), TERN_OK);
    assert_true(tern_item(tern_grad_get(net.first)) == 2);
    assert_null(tern_grad_get(net.second));
    tern_scope_end(f.scope, &err);
    net.from = net.calls + 2;
    tern_tensor *y = tern_checkpoint(&net.base, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2));
    tern_requires_grad_set(net.first, false, &err);
    expect_refusal(f.scope, y, "the parameter \"first\" was used only the first time");
    net.from = net.calls + 2;
    x = tern_mul(f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2), f.inner.scale);
    y = tern_checkpoint(&net.base, f.scope, x);
    tern_requires_grad_set(net.first, true, &err);
    expect_refusal(f.scope, y, "the parameter \"first\" was used only when it was computed again");
    tern_module_release(&net.base);
    close_fixture(&f);
}

/* A teacher beside the trained part: its forward runs without gradients, both times. */
static tern_tensor *taught_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    forked *self = (forked *)module;
    bool before = tern_grad_enabled_set(scope, false);
    tern_tensor *target = tern_mul(scope, x, self->second);
    assert_true(before && !tern_requires_grad_get(target));
    tern_grad_enabled_set(scope, before);
    return tern_mul(scope, target, self->first);
}

static tern_tensor *return_parameter(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)scope, (void)x;
    return ((forked *)module)->first;
}

static tern_tensor *return_constant(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module, (void)x;
    return tern_full(scope, TERN_F32, 0, NULL, 7);
}

static void expect_gradients(tern_scope *s, forked *net, tern_forward_fn forward, double first)
{
    tern_error err = {0};
    net->base.forward = forward;
    tern_tensor *y = tern_checkpoint(&net->base, s, tern_full(s, TERN_F32, 0, NULL, 2));
    assert_int_equal(tern_backward(s, y), TERN_OK);
    assert_true(tern_item(tern_grad_get(net->first)) == first);
    assert_null(tern_grad_get(net->second));
    assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    tern_zero_grad(&net->base);
}

static void a_part_may_be_without_gradients(void **state)
{
    (void)state;
    fixture f;
    forked net;
    tern_error err = {0};
    open_fixture(&f);
    open_forked(&net, 0, &err);
    tern_tensor_write(net.second, &(float){5}, sizeof(float), &err);
    expect_gradients(f.scope, &net, taught_forward, 10);
    expect_gradients(f.scope, &net, return_parameter, 1);
    net.base.forward = return_constant;
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    tern_requires_grad_set(x, true, &err);
    tern_tensor *y = tern_add(f.scope, x, tern_checkpoint(&net.base, f.scope, x));
    assert_int_equal(tern_backward(f.scope, y), TERN_OK);
    assert_true(tern_item(y) == 9 && tern_item(tern_grad_get(x)) == 1);
    tern_scope_end(f.scope, &err);
    tern_module_release(&net.base);
    close_fixture(&f);
}

/* The input may be a parameter. */
static void a_parameter_goes_in(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_tensor *y = tern_checkpoint(&f.inner.base, f.scope, f.inner.scale);
    assert_int_equal(tern_backward(f.scope, y), TERN_OK);
    assert_true(tern_item(tern_grad_get(f.inner.scale)) == 6);
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    close_fixture(&f);
}

/* ---- a backward inside the module's call ---- */

/* The gradients of scale and x, and the result. */
static void go_back_through_score(call_fn call, bool is_function, double *numbers)
{
    fixture f;
    tern_error err = {0};
    scored net;
    open_fixture(&f);
    scored_init(&net, is_function, &err);
    tern_tensor *x = tern_tensor_from(f.scope, (float[]){2, 5, 3, 4}, TERN_F32, 4, (int64_t[]){1, 1, 2, 2});
    tern_requires_grad_set(x, true, &err);
    tern_tensor *loss = tern_sum(f.scope, call(&net.base, f.scope, x));
    assert_int_equal(tern_backward(f.scope, loss), TERN_OK);
    numbers[0] = tern_item(loss);
    numbers[1] = tern_item(tern_grad_get(net.scale));
    numbers[2] = tern_item(tern_sum(f.scope, tern_grad_get(x)));
    tern_scope_end(f.scope, &err);
    assert_ok(err);
    tern_module_release(&net.base);
    close_fixture(&f);
}

static void the_module_goes_back_inside(void **state)
{
    (void)state;
    for (int is_function = 0; is_function < 2; is_function++) {
        double plain[3], again[3];
        go_back_through_score(tern_forward, is_function, plain);
        go_back_through_score(tern_checkpoint, is_function, again);
        assert_memory_equal(again, plain, sizeof(plain));
        assert_true(plain[0] == 15 * 2 * 15 * 3);  /* y = 15 wins, and its slope is 2 y scale */
        assert_true(plain[1] == 15 * 15 + 5 * 90); /* of the score, and of the result */
        assert_true(plain[2] == 3 * 90);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_less_memory),
        cmocka_unit_test(also_under_autocast),
        cmocka_unit_test(gradients_pass_through),
        cmocka_unit_test(a_kept_cast_hides_no_use),
        cmocka_unit_test(what_comes_from_elsewhere_is_refused),
        cmocka_unit_test(the_second_pass_uses_what_the_first_did),
        cmocka_unit_test(a_part_may_be_without_gradients),
        cmocka_unit_test(a_parameter_goes_in),
        cmocka_unit_test(the_module_goes_back_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
