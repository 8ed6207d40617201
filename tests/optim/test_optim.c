/* What optimizers share: parts of a tree, memory, and what cannot be. tests/torch/test_sgd.py and
 * test_adam.py compare the updates with PyTorch's. */
#include "optim/layers.h"

#include <math.h>
#include <stdio.h>

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

typedef tern_optim *(*optim_fn)(tern_module *net, tern_error *err);

static tern_optim *new_lamb(tern_module *net, tern_error *err)
{
    return tern_lamb_new(net, NULL, err);
}

/* One try with the `at`th request from here on refused; false if there was none. */
static bool try_without(optim_fn make, int at, bool sealed)
{
    ledger books = {0};
    ledger_open(&books);
    bench b = open_bench(true);
    tern_error err = {0};
    if (sealed) tern_optim_free(tern_sgd_new(b.net, NULL, &b.w.err));
    int live = atomic_load(&books.live);
    books.refuse_at = atomic_load(&books.requests) + at;
    tern_optim *optim = make(b.net, &err);
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
    const optim_fn makes[] = {new_grouped, new_lamb};
    for (int i = 0; i < 4; i++) {
        int at = 1;
        while (try_without(makes[i / 2], at, i % 2)) at++;
        assert_in_range(at, 5, 100);
    }
}

/* The state is made by the first step: one that gets no memory has changed nothing and may be repeated. */
static void out_of_memory_in_the_first_step(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    bench b = open_bench(true);
    tern_optim *optim = new_grouped(b.net, &b.w.err);
    use_all(&b);
    for (int at = 1; at <= 6; at++) { /* three states of two dtypes */
        assert_int_equal(tern_optim_state_bytes(optim), 0);
        books.refuse_at = atomic_load(&books.requests) + at;
        tern_optim_step(optim, b.w.scope);
        books.refuse_at = 0;
        tern_error err = {0};
        assert_int_equal(tern_scope_end(b.w.scope, &err), TERN_E_MEMORY);
        assert_string_equal(err.func, "tern_optim_step");
        assert_true(first(b.weight[0]) == 0 && tern_grad_get(b.weight[0]));
    }
    step(&b, optim);
    assert_true(first(b.weight[0]) != 0 && !tern_grad_get(b.weight[0]));
    size_t f32 = 3 * TERN__LINE + 36, f64 = 4 * TERN__LINE + 72; /* a (3) of a line, a (3, 3) of one or two */
    assert_int_equal(tern_optim_state_bytes(optim), 3 * (f32 + f64));
    tern_optim_free(optim);
    close_bench(&b);
    ledger_close(&books);
}

static tern_optim *new_larc(tern_module *net, tern_error *err)
{
    tern_optim *optim = new_grouped(net, err);
    tern_optim_larc(optim, NULL, err);
    return optim;
}

/* With clipping and a schedule. */
static void warm_steps_of(optim_fn make)
{
    ledger books = {0};
    ledger_open(&books);
    bench b = open_bench(true);
    tern_optim *optim = make(b.net, &b.w.err);
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

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    warm_steps_of(new_grouped);
    warm_steps_of(new_larc);
    warm_steps_of(new_lamb);
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

static void rmsprop_options_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_error err = {0};
    tern_rmsprop_opts opts = tern_rmsprop_defaults();
    opts.momentum = -1;
    expect_refused(tern_rmsprop_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_rmsprop_new",
                   "rmsprop: expected lr, eps, weight_decay and momentum >= 0, got 0.01, 1e-08, 0 and -1");
    opts = tern_rmsprop_defaults();
    opts.alpha = NAN;
    expect_refused(tern_rmsprop_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_rmsprop_new",
                   "rmsprop: expected alpha >= 0, got nan");
    close_bench(&b);
}

static void adagrad_options_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_error err = {0};
    tern_adagrad_opts opts = tern_adagrad_defaults();
    opts.lr = -1;
    expect_refused(tern_adagrad_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_adagrad_new",
                   "adagrad: expected lr, eps and weight_decay >= 0, got -1, 1e-10 and 0");
    opts = tern_adagrad_defaults();
    opts.lr_decay = -0.5;
    expect_refused(tern_adagrad_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_adagrad_new",
                   "adagrad: expected lr_decay and initial_accumulator_value >= 0, got -0.5 and 0");
    close_bench(&b);
}

static void lamb_options_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_error err = {0};
    tern_lamb_opts opts = tern_lamb_defaults();
    opts.eps = -1;
    expect_refused(tern_lamb_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_lamb_new",
                   "lamb: expected lr, eps and weight_decay >= 0, got 0.001, -1 and 0.01");
    opts = tern_lamb_defaults();
    opts.beta2 = 1;
    expect_refused(tern_lamb_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_lamb_new",
                   "lamb: expected beta1 and beta2 from 0 to below 1, got 0.9 and 1");
    opts = tern_lamb_defaults();
    opts.max_grad_norm = 0;
    expect_refused(tern_lamb_new(b.net, &opts, &err), &err, TERN_E_RANGE, "tern_lamb_new",
                   "lamb: expected max_grad_norm > 0, got 0");
    close_bench(&b);
}

static void expect_no_larc(tern_optim *optim, tern_larc_opts opts, int code, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_optim_larc(optim, &opts, &err), code);
    expect_refused(NULL, &err, code, "tern_optim_larc", text);
}

static void larc_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *lamb = tern_lamb_new(b.layers[0], NULL, &b.w.err), *sgd = tern_sgd_new(b.net, NULL, &b.w.err);
    tern_larc_opts opts = tern_larc_defaults();
    expect_no_larc(NULL, opts, TERN_E_INVALID, "the optimizer is NULL");
    expect_no_larc(lamb, opts, TERN_E_INVALID,
                   "LAMB has trust ratios of its own: expected another optimizer");
    opts.trust_coefficient = -1;
    expect_no_larc(sgd, opts, TERN_E_RANGE,
                   "larc: expected trust_coefficient and eps >= 0, got -1 and 1e-08");
    assert_int_equal(tern_optim_larc(sgd, NULL, &(tern_error){.code = TERN_E_IO}), TERN_E_IO);
    assert_int_equal(sgd->larc.size, 0);
    tern_optim_free(lamb);
    tern_optim_free(sgd);
    close_bench(&b);
}

static void groups_of_another_kind(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *sgd = tern_sgd_new(b.net, NULL, &b.w.err);
    tern_error err[3] = {{0}};
    assert_int_equal(tern_rmsprop_group_add(sgd, is_bias, NULL, NULL, &err[0]), TERN_E_INVALID);
    assert_string_equal(err[0].text, "a group of rmsprop for an optimizer that is sgd");
    assert_int_equal(tern_adagrad_group_add(sgd, is_bias, NULL, NULL, &err[1]), TERN_E_INVALID);
    assert_string_equal(err[1].text, "a group of adagrad for an optimizer that is sgd");
    assert_int_equal(tern_lamb_group_add(sgd, is_bias, NULL, NULL, &err[2]), TERN_E_INVALID);
    assert_string_equal(err[2].text, "a group of lamb for an optimizer that is sgd");
    for (int i = 0; i < 3; i++) err[i] = (tern_error){.code = TERN_E_IO};
    assert_int_equal(tern_rmsprop_group_add(sgd, is_bias, NULL, NULL, &err[0]), TERN_E_IO);
    assert_int_equal(tern_adagrad_group_add(sgd, is_bias, NULL, NULL, &err[1]), TERN_E_IO);
    assert_int_equal(tern_lamb_group_add(sgd, is_bias, NULL, NULL, &err[2]), TERN_E_IO);
    tern_optim_free(sgd);
    close_bench(&b);
}

static void no_module(void **state)
{
    (void)state;
    tern_error err = {0};
    expect_refused(tern_sgd_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_sgd_new",
                   "the module is NULL or was never made");
    expect_refused(tern_adam_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_adam_new",
                   "the module is NULL or was never made");
    expect_refused(tern_adamw_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_adamw_new",
                   "the module is NULL or was never made");
    expect_refused(tern_rmsprop_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_rmsprop_new",
                   "the module is NULL or was never made");
    expect_refused(tern_adagrad_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_adagrad_new",
                   "the module is NULL or was never made");
    expect_refused(tern_lamb_new(NULL, NULL, &err), &err, TERN_E_INVALID, "tern_lamb_new",
                   "the module is NULL or was never made");
    err = (tern_error){.code = TERN_E_IO};
    assert_null(tern_adam_new(NULL, NULL, &err));
    assert_null(tern_adamw_new(NULL, NULL, &err));
    assert_null(tern_rmsprop_new(NULL, NULL, &err));
    assert_null(tern_adagrad_new(NULL, NULL, &err));
    assert_null(tern_lamb_new(NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_part_is_touched),
        cmocka_unit_test(out_of_memory_leaves_nothing_behind),
        cmocka_unit_test(out_of_memory_in_the_first_step),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(a_failed_step_updates_nothing),
        cmocka_unit_test(sgd_options_that_cannot_be),
        cmocka_unit_test(adam_options_that_cannot_be),
        cmocka_unit_test(rmsprop_options_that_cannot_be),
        cmocka_unit_test(adagrad_options_that_cannot_be),
        cmocka_unit_test(lamb_options_that_cannot_be),
        cmocka_unit_test(larc_that_cannot_be),
        cmocka_unit_test(groups_of_another_kind),
        cmocka_unit_test(no_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
