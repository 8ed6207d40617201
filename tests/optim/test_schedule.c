/* Warm-up and cosine against the formula, step by step, and optimizers that cannot be made. */
#include "ledger.h"
#include "ops/world.h"

#include <math.h>

#define PI 3.14159265358979323846

/* An optimizer of one layer, with the world around it. */
typedef struct bench {
    world w;
    tern_module *net;
    tern_optim *optim;
} bench;

static bench open_bench(double lr)
{
    bench b = {.w = open_world()};
    b.net = tern_linear_new(3, 2, NULL, b.w.rng, &b.w.err);
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = lr;
    b.optim = tern_sgd_new(b.net, &opts, &b.w.err);
    assert_ok(b.w.err);
    return b;
}

static void close_bench(bench *b)
{
    tern_optim_free(b->optim);
    tern_module_free(b->net);
    close_world(&b->w);
}

/* The rate of step t as the header states it. */
static double formula(double peak, int warm_up, int steps, int t)
{
    if (t < warm_up) return peak * (t + 1) / warm_up;
    if (t >= steps) return 0;
    return peak * 0.5 * (1 + cos(PI * (t - warm_up) / (steps - warm_up)));
}

static void expect_rates(double peak, int warm_up, int steps)
{
    bench b = open_bench(peak);
    tern_schedule *schedule = tern_cosine_schedule_new(b.optim, TERN_UNIT_STEPS, warm_up, steps, &b.w.err);
    assert_ok(b.w.err);
    for (int t = 0; t < steps + 3; t++) {
        double want = formula(peak, warm_up, steps, t);
        assert_true(fabs(tern_optim_lr_get(b.optim, 0) - want) <= 1e-15 * peak);
        tern_schedule_step(schedule);
    }
    tern_schedule_free(schedule);
    close_bench(&b);
}

static void rates(void **state)
{
    (void)state;
    expect_rates(0.1, 5, 50);
    expect_rates(3, 0, 7);
    expect_rates(0.5, 1, 2);
    expect_rates(0.5, 10, 10); /* warm-up only */
    expect_rates(1, 0, 1);
}

/* Values that are known without the formula. */
static void landmarks(void **state)
{
    (void)state;
    bench b = open_bench(0.8);
    tern_schedule *schedule = tern_cosine_schedule_new(b.optim, TERN_UNIT_STEPS, 4, 24, &b.w.err);
    double seen[30];
    for (int t = 0; t < 30; t++, tern_schedule_step(schedule)) seen[t] = tern_optim_lr_get(b.optim, 0);
    assert_true(seen[0] == 0.2 && seen[3] == 0.8 && seen[4] == 0.8);
    assert_true(fabs(seen[14] - 0.4) < 1e-15); /* half way down */
    assert_true(seen[23] > 0 && seen[24] == 0 && seen[29] == 0);
    for (int t = 5; t < 24; t++) assert_true(seen[t] < seen[t - 1]);
    tern_schedule_free(schedule);
    tern_schedule_free(NULL);
    close_bench(&b);
}

static void expect_refused(bench *b, int64_t warm_up, int64_t steps, const char *text)
{
    tern_error err = {0};
    assert_null(tern_cosine_schedule_new(b->optim, TERN_UNIT_STEPS, warm_up, steps, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_string_equal(err.text, text);
    assert_string_equal(err.func, "tern_cosine_schedule_new");
}

static void steps_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(0.001);
    expect_refused(&b, 0, 0, "warm-up of 0 in 0: expected 0 <= warm-up <= total and total > 0");
    expect_refused(&b, -1, 5, "warm-up of -1 in 5: expected 0 <= warm-up <= total and total > 0");
    expect_refused(&b, 6, 5, "warm-up of 6 in 5: expected 0 <= warm-up <= total and total > 0");
    assert_true(tern_optim_lr_get(b.optim, 0) == tern_sgd_defaults().lr);
    tern_error err = {0};
    assert_null(tern_cosine_schedule_new(NULL, TERN_UNIT_STEPS, 1, 5, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "the optimizer is NULL");
    close_bench(&b);
}

static void expect_no_sgd(tern_sgd_opts opts, int code, const char *text)
{
    world w = open_world();
    tern_module *net = tern_linear_new(3, 2, NULL, w.rng, &w.err);
    tern_error err = {0};
    assert_null(tern_sgd_new(net, &opts, &err));
    assert_int_equal(err.code, code);
    assert_string_equal(err.text, text);
    assert_string_equal(err.func, "tern_sgd_new");
    assert_non_null(tern_module_add(net, "more", tern_relu_new(&w.err), &w.err)); /* not sealed */
    tern_module_free(net);
    close_world(&w);
}

static void options_that_cannot_be(void **state)
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
    opts.nesterov = true;
    expect_no_sgd(opts, TERN_E_INVALID,
                  "sgd: nesterov wants a momentum > 0 and no dampening, got momentum 0 and dampening 0");
    expect_no_sgd((tern_sgd_opts){.lr = 1}, TERN_E_INVALID,
                  "options: size is 0; start from what the _defaults function returns");
    tern_error err = {0};
    assert_null(tern_sgd_new(NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "the module is NULL");
}

/* Nothing is updated after an error in the scope, and nothing forgotten. */
static void a_failed_step_updates_nothing(void **state)
{
    (void)state;
    bench b = open_bench(0.001);
    float before[6], after[6];
    tern_tensor *weight = tern_state_find(b.net, "weight");
    const float ones[3] = {1, 1, 1};
    tern_tensor *x = tern_tensor_from(b.w.scope, ones, TERN_F32, 2, (int64_t[]){1, 3});
    assert_int_equal(tern_backward(b.w.scope, tern_sum(b.w.scope, tern_forward(b.net, b.w.scope, x))),
                     TERN_OK);
    tern_relu(b.w.scope, NULL);
    tern_tensor_read(weight, before, sizeof(before), &b.w.err);
    tern_optim_step(b.optim, b.w.scope);
    tern_tensor_read(weight, after, sizeof(after), &b.w.err);
    assert_memory_equal(before, after, sizeof(after));
    assert_non_null(tern_grad_get(weight));
    assert_int_equal(tern_scope_end(b.w.scope, NULL), TERN_E_INVALID);
    tern_optim_step(b.optim, b.w.scope);
    tern_tensor_read(weight, after, sizeof(after), &b.w.err);
    for (int i = 0; i < 6; i++) assert_true(after[i] == before[i] - 0.001f);
    assert_null(tern_grad_get(weight));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(landmarks),
        cmocka_unit_test(steps_that_cannot_be),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(a_failed_step_updates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
