/* What optimizers share: groups, runs of neighbours in one kernel call, parts of a tree, memory, and what
 * cannot be. tests/torch/test_sgd.py and test_adam.py compare the updates with PyTorch's. */
#include "ledger.h"
#include "ops/world.h"
#include "optim/optim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, WIDTH = 3 };

/* A module "net" of children "0".. with a weight and a bias each, in f32 or, every other one, in f64. */
typedef struct bench {
    world w;
    tern_module *net, *layers[LAYERS];
    tern_tensor *weight[LAYERS], *bias[LAYERS];
} bench;

static void add_layer(bench *b, int i, tern_dtype dtype)
{
    static const char *const names[LAYERS] = {"0", "1", "2", "3"};
    tern_error *err = &b->w.err;
    b->layers[i] = tern_module_add(b->net, names[i], tern_sequential_new(err), err);
    b->weight[i] = tern_parameter_add(b->layers[i], "weight", dtype, 2, (int64_t[]){WIDTH, WIDTH}, err);
    b->bias[i] = tern_parameter_add(b->layers[i], "bias", dtype, 1, (int64_t[]){WIDTH}, err);
}

static bench open_bench(bool mixed)
{
    bench b = {.w = open_world()};
    b.net = tern_sequential_new(&b.w.err);
    for (int i = 0; i < LAYERS; i++) add_layer(&b, i, mixed && i % 2 ? TERN_F64 : TERN_F32);
    assert_ok(b.w.err);
    return b;
}

static void close_bench(bench *b)
{
    tern_module_free(b->net);
    close_world(&b->w);
}

/* The gradient of the parameter's sum: one everywhere. */
static void use(bench *b, tern_tensor *parameter)
{
    assert_int_equal(tern_backward(b->w.scope, tern_sum(b->w.scope, parameter)), TERN_OK);
}

static void use_all(bench *b)
{
    for (int i = 0; i < LAYERS; i++) {
        use(b, b->weight[i]);
        use(b, b->bias[i]);
    }
}

static double first(const tern_tensor *tensor)
{
    return tern__view_get(&tensor->view, 0);
}

static void step(bench *b, tern_optim *optim)
{
    tern_optim_step(optim, b->w.scope);
    assert_int_equal(tern_scope_end(b->w.scope, &b->w.err), TERN_OK);
}

/* ---- how often the kernel is called ---- */

typedef struct call_counter {
    tern__kernel_observer base;
    int calls;
} call_counter;

static void count_call(tern__kernel_observer *self, const tern__call *call, int64_t ns)
{
    (void)call;
    (void)ns;
    ((call_counter *)self)->calls++;
}

static int calls_of_step(bench *b, tern_optim *optim)
{
    call_counter seen = {.base.ran = count_call};
    b->w.device->observer = &seen.base;
    step(b, optim);
    b->w.device->observer = NULL;
    return seen.calls;
}

static bool is_bias(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)ctx;
    (void)parameter;
    return strstr(name, "bias") != NULL;
}

static bool is_first_layer(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)ctx;
    (void)parameter;
    return name[0] == '0';
}

static void neighbours_are_updated_in_one_call(void **state)
{
    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) {
        bench b = open_bench(mixed);
        tern_optim *optim = tern_adam_new(b.net, NULL, &b.w.err);
        assert_ok(b.w.err);
        use_all(&b);
        assert_int_equal(calls_of_step(&b, optim), 1 + mixed);
        use_all(&b);
        assert_int_equal(calls_of_step(&b, optim), 1 + mixed);
        tern_optim_free(optim);
        close_bench(&b);
    }
}

static void a_parameter_left_out_is_behind_from_then_on(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_adam_new(b.net, NULL, &b.w.err);
    for (int i = 0; i < LAYERS; i++) {
        use(&b, b.weight[i]);
        if (i != 1) use(&b, b.bias[i]);
    }
    assert_int_equal(calls_of_step(&b, optim), 2);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 3);
    use(&b, b.bias[1]);
    assert_int_equal(calls_of_step(&b, optim), 1);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 1);
    assert_int_equal(calls_of_step(&b, optim), 0);
    tern_optim_free(optim);
    close_bench(&b);
}

static void groups_part_neighbours(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_sgd_new(b.net, NULL, &b.w.err);
    assert_int_equal(tern_sgd_group_add(optim, is_first_layer, NULL, NULL, &b.w.err), 1);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 2);
    tern_optim_free(optim);
    optim = tern_sgd_new(b.net, NULL, &b.w.err);
    assert_int_equal(tern_sgd_group_add(optim, is_bias, NULL, NULL, &b.w.err), 1);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 2 * LAYERS);
    tern_optim_free(optim);
    close_bench(&b);
}

/* ---- groups ---- */

typedef struct asked {
    int count;
    char names[2 * LAYERS][16];
    const tern_tensor *parameters[2 * LAYERS];
} asked;

static bool ask(const char *name, const tern_tensor *parameter, void *ctx)
{
    asked *a = ctx;
    snprintf(a->names[a->count], sizeof(a->names[0]), "%s", name);
    a->parameters[a->count++] = parameter;
    return false;
}

/* Under its name in the whole tree, in the order of the state dict, whatever group it is in. */
static void every_parameter_is_asked_about(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *whole = tern_sgd_new(b.net, NULL, &b.w.err),
               *part = tern_sgd_new(b.layers[2], NULL, &b.w.err);
    assert_int_equal(tern_sgd_group_add(whole, is_bias, NULL, NULL, &b.w.err), 1);
    asked all = {0}, two = {0};
    assert_int_equal(tern_sgd_group_add(whole, ask, &all, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(tern_sgd_group_add(part, ask, &two, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(all.count, 2 * LAYERS);
    assert_int_equal(two.count, 2);
    for (int i = 0; i < 2 * LAYERS; i++) {
        tern_state_entry entry = tern_state_get(b.net, i);
        assert_string_equal(all.names[i], entry.name);
        assert_ptr_equal(all.parameters[i], entry.tensor);
    }
    assert_string_equal(two.names[0], "2.weight");
    assert_string_equal(two.names[1], "2.bias");
    tern_optim_free(part);
    tern_optim_free(whole);
    close_bench(&b);
}

static void every_group_has_its_rate(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_sgd_new(b.net, NULL, &b.w.err);
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 4;
    assert_int_equal(tern_sgd_group_add(optim, is_bias, NULL, &opts, &b.w.err), 1);
    opts.lr = 8;
    assert_int_equal(tern_sgd_group_add(optim, is_first_layer, NULL, &opts, &b.w.err), 2);
    assert_int_equal(tern_optim_group_count(optim), 3);
    tern_optim_lr_set(optim, 0, 2);
    assert_true(tern_optim_lr_get(optim, 0) == 2 && tern_optim_lr_get(optim, 1) == 4);
    assert_true(tern_optim_lr_get(optim, 2) == 8);
    tern_schedule *half = tern_exponential_schedule_new(optim, TERN_UNIT_STEPS, 0.5, &b.w.err);
    tern_schedule_step(half);
    assert_true(tern_optim_lr_get(optim, 0) == 1 && tern_optim_lr_get(optim, 2) == 4);
    use_all(&b);
    step(&b, optim);
    assert_true(first(b.weight[1]) == -1 && first(b.bias[1]) == -2 && first(b.bias[0]) == -4);
    tern_optim_lr_set(optim, 3, 1);
    tern_optim_lr_set(optim, -1, 1);
    tern_optim_lr_set(NULL, 0, 1);
    assert_true(isnan(tern_optim_lr_get(optim, 3)) && isnan(tern_optim_lr_get(optim, -1)));
    assert_true(isnan(tern_optim_lr_get(NULL, 0)));
    assert_int_equal(tern_optim_group_count(NULL), 0);
    tern_schedule_free(half);
    tern_optim_free(optim);
    close_bench(&b);
}

static void expect_group_refused(int got, tern_error *err, int code, const char *func, const char *text)
{
    assert_int_equal(got, code);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, func);
    assert_string_equal(err->text, text);
    *err = (tern_error){0};
}

static void groups_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *sgd = tern_sgd_new(b.net, NULL, &b.w.err), *adam = tern_adamw_new(b.net, NULL, &b.w.err);
    tern_error err = {0};
    const char *of_sgd = "tern_sgd_group_add", *of_adam = "tern_adam_group_add";
    expect_group_refused(tern_sgd_group_add(adam, is_bias, NULL, NULL, &err), &err, TERN_E_INVALID, of_sgd,
                         "a group of sgd for an optimizer that is adam");
    expect_group_refused(tern_adam_group_add(sgd, is_bias, NULL, NULL, &err), &err, TERN_E_INVALID, of_adam,
                         "a group of adam for an optimizer that is sgd");
    expect_group_refused(tern_sgd_group_add(NULL, is_bias, NULL, NULL, &err), &err, TERN_E_INVALID, of_sgd,
                         "the optimizer or the function `belongs` is NULL");
    expect_group_refused(tern_adam_group_add(adam, NULL, NULL, NULL, &err), &err, TERN_E_INVALID, of_adam,
                         "the optimizer or the function `belongs` is NULL");
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.momentum = -1;
    expect_group_refused(tern_sgd_group_add(sgd, is_bias, NULL, &opts, &err), &err, TERN_E_RANGE, of_sgd,
                         "sgd: expected lr, momentum and weight_decay >= 0, got 0.001, -1 and 0");
    asked all = {0};
    expect_group_refused(tern_adam_group_add(adam, ask, &all, NULL, &err), &err, TERN_E_INVALID, of_adam,
                         "no parameter belongs to the new group");
    use_all(&b);
    step(&b, sgd);
    step(&b, adam);
    expect_group_refused(tern_sgd_group_add(sgd, is_bias, NULL, NULL, &err), &err, TERN_E_STATE, of_sgd,
                         "the optimizer has made a step; add all groups before the first");
    expect_group_refused(tern_adam_group_add(adam, is_bias, NULL, NULL, &err), &err, TERN_E_STATE, of_adam,
                         "the optimizer has made a step; add all groups before the first");
    assert_int_equal(tern_optim_group_count(sgd), 1);
    assert_int_equal(tern_optim_group_count(adam), 1);
    err.code = TERN_E_IO;
    assert_int_equal(tern_sgd_group_add(sgd, is_bias, NULL, NULL, &err), TERN_E_IO);
    assert_int_equal(tern_adam_group_add(adam, is_bias, NULL, NULL, &err), TERN_E_IO);
    tern_optim_free(adam);
    tern_optim_free(sgd);
    close_bench(&b);
}

/* A group without options of its own has the defaults of its optimizer's kind. */
static void the_defaults_of_a_group(void **state)
{
    (void)state;
    bench b = open_bench(false);
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        tern_optim *optim = (decoupled ? tern_adamw_new : tern_adam_new)(b.net, NULL, &b.w.err);
        assert_int_equal(tern_adam_group_add(optim, is_bias, NULL, NULL, &b.w.err), 1);
        for (int g = 0; g < 2; g++)
            assert_true(optim->groups[g].opts.adam.weight_decay == (decoupled ? 0.01 : 0));
        tern_optim_free(optim);
    }
    close_bench(&b);
}

/* ---- a part of the tree ---- */

static void only_the_part_is_touched(void **state)
{
    (void)state;
    bench b = open_bench(true);
    tern_adam_opts opts = tern_adam_defaults();
    opts.lr = 1;
    opts.eps = 0;
    tern_optim *part = tern_adam_new(b.layers[1], &opts, &b.w.err);
    tern_optim *rest = tern_sgd_new(b.layers[3], NULL, &b.w.err);
    assert_ok(b.w.err);
    use_all(&b);
    step(&b, part);
    for (int i = 0; i < LAYERS; i++) {
        assert_true(fabs(first(b.weight[i]) - (i == 1 ? -1 : 0)) < 1e-12);
        assert_true(fabs(first(b.bias[i]) - (i == 1 ? -1 : 0)) < 1e-12);
        assert_true((tern_grad_get(b.weight[i]) == NULL) == (i == 1));
    }
    step(&b, rest);
    assert_true(first(b.weight[3]) == -0.001 && fabs(first(b.weight[1]) + 1) < 1e-12);
    assert_null(tern_grad_get(b.bias[3]));
    assert_non_null(tern_grad_get(b.weight[0]));
    tern_optim_free(rest);
    tern_optim_free(part);
    close_bench(&b);
}

/* ---- memory ---- */

/* Two groups, of which only the second wants the largest second moment. */
static tern_optim *new_grouped(tern_module *net, tern_error *err)
{
    tern_adam_opts opts = tern_adam_defaults();
    opts.amsgrad = true;
    tern_optim *optim = tern_adam_new(net, NULL, err);
    int group = tern_adam_group_add(optim, is_bias, NULL, &opts, err);
    assert_true(err->code ? group == err->code : group == 1);
    return optim;
}

/* One try with the `at`th request from here on refused; false if there was none. */
static bool try_without(int at, bool sealed)
{
    ledger books = {0};
    ledger_open(&books);
    bench b = open_bench(true);
    tern_error err = {0};
    if (sealed) tern_optim_free(tern_sgd_new(b.net, NULL, &b.w.err));
    int live = atomic_load(&books.live);
    books.refuse_at = atomic_load(&books.requests) + at;
    tern_optim *optim = new_grouped(b.net, &err);
    bool refused = atomic_load(&books.requests) >= books.refuse_at;
    assert_int_equal(err.code, refused ? TERN_E_MEMORY : TERN_OK);
    tern_optim_free(optim);
    if (sealed) assert_int_equal(atomic_load(&books.live), live);
    books.refuse_at = 0;
    use_all(&b); /* the tree is as good as before */
    tern_scope_end(b.w.scope, &b.w.err);
    assert_ok(b.w.err);
    close_bench(&b);
    ledger_close(&books);
    return refused;
}

static void out_of_memory_leaves_nothing_behind(void **state)
{
    (void)state;
    for (int sealed = 0; sealed < 2; sealed++) {
        int at = 1;
        while (try_without(at, sealed)) at++;
        assert_in_range(at, 10, 100);
    }
}

/* With clipping and a schedule. */
static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    bench b = open_bench(true);
    tern_optim *optim = new_grouped(b.net, &b.w.err);
    tern_schedule *schedule = tern_cosine_schedule_new(optim, TERN_UNIT_STEPS, 2, 20, &b.w.err);
    for (int i = 0, warm = 0; i < 10; i++) {
        use_all(&b);
        assert_non_null(tern_clip_grad_norm(b.w.scope, b.net, 1, 2));
        step(&b, optim);
        tern_schedule_step(schedule);
        if (i == 4) warm = atomic_load(&books.requests);
        if (i > 4) assert_int_equal(atomic_load(&books.requests), warm);
    }
    assert_ok(b.w.err);
    tern_schedule_free(schedule);
    tern_optim_free(optim);
    close_bench(&b);
    ledger_close(&books);
}

/* ---- errors ---- */

/* Nothing is updated after an error in the scope, and nothing forgotten. */
static void a_failed_step_updates_nothing(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_sgd_new(b.net, NULL, &b.w.err);
    use(&b, b.weight[0]);
    tern_relu(b.w.scope, NULL);
    tern_optim_step(optim, b.w.scope);
    assert_true(first(b.weight[0]) == 0);
    assert_non_null(tern_grad_get(b.weight[0]));
    assert_int_equal(tern_sgd_group_add(optim, is_bias, NULL, NULL, &b.w.err), 1); /* that was no step */
    assert_int_equal(tern_scope_end(b.w.scope, NULL), TERN_E_INVALID);
    tern_optim_step(optim, b.w.scope);
    assert_true(first(b.weight[0]) == (double)-0.001f);
    assert_null(tern_grad_get(b.weight[0]));
    tern_optim_step(NULL, b.w.scope);
    tern_optim_free(optim);
    tern_optim_free(NULL);
    close_bench(&b);
}

static void expect_refused(const tern_optim *got, tern_error *err, int code, const char *func,
                           const char *text)
{
    assert_null(got);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, func);
    assert_string_equal(err->text, text);
    *err = (tern_error){0};
}

static void expect_no_sgd(tern_sgd_opts opts, int code, const char *text)
{
    bench b = open_bench(false);
    tern_error err = {0};
    expect_refused(tern_sgd_new(b.net, &opts, &err), &err, code, "tern_sgd_new", text);
    assert_non_null(tern_module_add(b.net, "more", tern_relu_new(&b.w.err), &b.w.err)); /* not sealed */
    close_bench(&b);
}

static void sgd_options_that_cannot_be(void **state)
{
    (void)state;
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = -1;
    expect_no_sgd(opts, TERN_E_RANGE, "sgd: expected lr, momentum and weight_decay >= 0, got -1, 0 and 0");
    opts = tern_sgd_defaults();
    opts.momentum = NAN;
    expect_no_sgd(opts, TERN_E_RANGE,
                  "sgd: expected lr, momentum and weight_decay >= 0, got 0.001, nan and 0");
    opts = tern_sgd_defaults();
    opts.weight_decay = -2;
    expect_no_sgd(opts, TERN_E_RANGE,
                  "sgd: expected lr, momentum and weight_decay >= 0, got 0.001, 0 and -2");
    opts = tern_sgd_defaults();
    opts.dampening = 1.5;
    expect_no_sgd(opts, TERN_E_RANGE, "sgd: expected dampening from 0 to 1, got 1.5");
    opts = tern_sgd_defaults();
    opts.nesterov = true;
    expect_no_sgd(opts, TERN_E_INVALID,
                  "sgd: nesterov wants a momentum > 0 and no dampening, got momentum 0 and dampening 0");
    opts.momentum = opts.dampening = 0.5;
    expect_no_sgd(opts, TERN_E_INVALID,
                  "sgd: nesterov wants a momentum > 0 and no dampening, got momentum 0.5 and dampening 0.5");
    expect_no_sgd((tern_sgd_opts){.lr = 1}, TERN_E_INVALID,
                  "options: size is 0; start from what the _defaults function returns");
    opts = tern_sgd_defaults();
    opts.size += 8;
    char text[128];
    snprintf(text, sizeof(text), "options: size is %zu, this version of the library knows %zu bytes",
             opts.size, sizeof(opts));
    expect_no_sgd(opts, TERN_E_UNSUPPORTED, text);
}

static void expect_no_adam(tern_adam_opts opts, int code, const char *text)
{
    bench b = open_bench(false);
    tern_error err = {0};
    expect_refused(tern_adam_new(b.net, &opts, &err), &err, code, "tern_adam_new", text);
    expect_refused(tern_adamw_new(b.net, &opts, &err), &err, code, "tern_adamw_new", text);
    assert_non_null(tern_module_add(b.net, "more", tern_relu_new(&b.w.err), &b.w.err)); /* not sealed */
    close_bench(&b);
}

static void adam_options_that_cannot_be(void **state)
{
    (void)state;
    tern_adam_opts opts = tern_adam_defaults();
    opts.lr = NAN;
    expect_no_adam(opts, TERN_E_RANGE, "adam: expected lr, eps and weight_decay >= 0, got nan, 1e-08 and 0");
    opts = tern_adam_defaults();
    opts.eps = -1;
    expect_no_adam(opts, TERN_E_RANGE, "adam: expected lr, eps and weight_decay >= 0, got 0.001, -1 and 0");
    opts = tern_adamw_defaults();
    opts.weight_decay = -1;
    expect_no_adam(opts, TERN_E_RANGE,
                   "adam: expected lr, eps and weight_decay >= 0, got 0.001, 1e-08 and -1");
    opts = tern_adam_defaults();
    opts.beta1 = 1;
    expect_no_adam(opts, TERN_E_RANGE, "adam: expected beta1 and beta2 from 0 to below 1, got 1 and 0.999");
    opts = tern_adam_defaults();
    opts.beta2 = -0.5;
    expect_no_adam(opts, TERN_E_RANGE, "adam: expected beta1 and beta2 from 0 to below 1, got 0.9 and -0.5");
    expect_no_adam((tern_adam_opts){.lr = 1}, TERN_E_INVALID,
                   "options: size is 0; start from what the _defaults function returns");
}

static void no_module(void **state)
{
    (void)state;
    tern_error err = {0};
    expect_refused(tern_sgd_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_sgd_new",
                   "the module is NULL");
    expect_refused(tern_adam_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_adam_new",
                   "the module is NULL");
    expect_refused(tern_adamw_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_adamw_new",
                   "the module is NULL");
    err = (tern_error){.code = TERN_E_IO};
    assert_null(tern_adam_new(NULL, NULL, &err));
    assert_null(tern_adamw_new(NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_updated_in_one_call),
        cmocka_unit_test(a_parameter_left_out_is_behind_from_then_on),
        cmocka_unit_test(groups_part_neighbours),
        cmocka_unit_test(every_parameter_is_asked_about),
        cmocka_unit_test(every_group_has_its_rate),
        cmocka_unit_test(groups_that_cannot_be),
        cmocka_unit_test(the_defaults_of_a_group),
        cmocka_unit_test(only_the_part_is_touched),
        cmocka_unit_test(out_of_memory_leaves_nothing_behind),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(a_failed_step_updates_nothing),
        cmocka_unit_test(sgd_options_that_cannot_be),
        cmocka_unit_test(adam_options_that_cannot_be),
        cmocka_unit_test(no_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
