/* Schedules: warm-up and cosine against the formula, how they share an optimizer, the warning about the unit,
 * and what cannot be. tests/torch/test_schedule.py compares them with PyTorch's. */
#include "ledger.h"
#include "ops/world.h"
#include "optim/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

static double rate(const bench *b)
{
    return tern_optim_lr_get(b->optim, 0);
}

/* ---- warm-up and cosine ---- */

/* The rate of step t as the header states it. */
static double formula(double peak, int warm_up, int total, int t)
{
    if (t < warm_up) return peak * (t + 1) / warm_up;
    if (t >= total) return 0;
    return peak * 0.5 * (1 + cos(PI * (t - warm_up) / (total - warm_up)));
}

static void expect_rates(double peak, int warm_up, int total)
{
    bench b = open_bench(peak);
    tern_schedule *schedule = tern_cosine_schedule_new(b.optim, TERN_UNIT_STEPS, warm_up, total, &b.w.err);
    assert_ok(b.w.err);
    for (int t = 0; t < total + 3; t++) {
        double want = formula(peak, warm_up, total, t);
        assert_true(fabs(rate(&b) - want) <= 1e-15 * peak);
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
    for (int t = 0; t < 30; t++, tern_schedule_step(schedule)) seen[t] = rate(&b);
    assert_true(seen[0] == 0.2 && seen[3] == 0.8 && seen[4] == 0.8);
    assert_true(fabs(seen[14] - 0.4) < 1e-15); /* half way down */
    assert_true(seen[23] > 0 && seen[24] == 0 && seen[29] == 0);
    for (int t = 5; t < 24; t++) assert_true(seen[t] < seen[t - 1]);
    tern_schedule_free(schedule);
    close_bench(&b);
}

/* ---- several on one optimizer ---- */

static void schedules_come_and_go(void **state)
{
    (void)state;
    bench b = open_bench(8);
    tern_error *err = &b.w.err;
    tern_schedule *half = tern_exponential_schedule_new(b.optim, TERN_UNIT_EPOCHS, 0.5, err);
    tern_schedule *quarter =
        tern_multi_step_schedule_new(b.optim, TERN_UNIT_STEPS, 1, (int64_t[]){0}, 0.25, err);
    tern_schedule *none = tern_step_schedule_new(b.optim, TERN_UNIT_STEPS, 1, 0, err);
    assert_ok(b.w.err);
    assert_true(rate(&b) == 2); /* a milestone at 0 counts at once */
    tern_schedule_epoch(half);
    tern_schedule_epoch(quarter);
    assert_true(rate(&b) == 1);
    tern_schedule_step(none); /* a factor of 0 is no end */
    assert_true(rate(&b) == 0);
    tern_schedule_free(none);
    assert_true(rate(&b) == 1);
    tern_optim_lr_set(b.optim, 0, 16); /* is what they multiply */
    assert_true(rate(&b) == 2);
    tern_schedule_free(quarter);
    assert_true(rate(&b) == 8);
    tern_schedule_free(half);
    assert_true(rate(&b) == 16);
    tern_schedule_free(NULL);
    tern_schedule_step(NULL);
    tern_schedule_epoch(NULL);
    close_bench(&b);
}

/* ---- steps where epochs were meant ---- */

typedef struct heard {
    int warnings;
    char text[256];
} heard;

static void hear(tern_log_level level, const char *text, void *ctx)
{
    heard *h = ctx;
    h->warnings += level == TERN_LOG_WARN;
    snprintf(h->text, sizeof(h->text), "%s", text);
}

/* Two epochs of 100 steps. Returns how often it warned. */
static heard two_epochs(tern_schedule *schedule)
{
    heard h = {0};
    assert_non_null(schedule);
    tern_log_set(hear, &h);
    for (int t = 0; t < 200; t++) {
        tern_schedule_step(schedule);
        if (t % 100 == 99) tern_schedule_epoch(schedule);
    }
    tern_log_set(NULL, NULL);
    tern_schedule_free(schedule);
    return h;
}

static void a_schedule_that_ends_in_the_first_epoch_warns_once(void **state)
{
    (void)state;
    bench b = open_bench(1);
    const int64_t early[] = {30, 99}, late[] = {30, 100};
    const tern_unit steps = TERN_UNIT_STEPS, epochs = TERN_UNIT_EPOCHS;
    heard h = two_epochs(tern_multi_step_schedule_new(b.optim, steps, 2, early, 0.1, NULL));
    assert_int_equal(h.warnings, 1);
    assert_string_equal(h.text,
                        "a schedule in steps ended at 99 of the first epoch's 100; was it meant in epochs?");
    assert_int_equal(two_epochs(tern_cosine_schedule_new(b.optim, steps, 5, 90, NULL)).warnings, 1);
    assert_int_equal(two_epochs(tern_linear_schedule_new(b.optim, steps, 1, 0, 90, NULL)).warnings, 1);
    assert_int_equal(two_epochs(tern_multi_step_schedule_new(b.optim, steps, 2, late, 0.1, NULL)).warnings,
                     0);
    assert_int_equal(two_epochs(tern_multi_step_schedule_new(b.optim, epochs, 2, early, 0.1, NULL)).warnings,
                     0);
    assert_int_equal(two_epochs(tern_cosine_schedule_new(b.optim, steps, 5, 100, NULL)).warnings, 0);
    assert_int_equal(two_epochs(tern_linear_schedule_new(b.optim, steps, 0.1, 1, 90, NULL)).warnings, 0);
    assert_int_equal(two_epochs(tern_step_schedule_new(b.optim, steps, 30, 0.1, NULL)).warnings, 0);
    assert_int_equal(two_epochs(tern_polynomial_schedule_new(b.optim, steps, 90, 1, NULL)).warnings, 1);
    assert_int_equal(two_epochs(tern_cosine_annealing_schedule_new(b.optim, steps, 90, 0, NULL)).warnings, 1);
    assert_int_equal(two_epochs(tern_cosine_annealing_schedule_new(b.optim, steps, 200, 0, NULL)).warnings,
                     0);
    assert_int_equal(two_epochs(tern_constant_schedule_new(b.optim, steps, 0.1, 90, NULL)).warnings, 0);
    assert_int_equal(two_epochs(tern_cosine_restarts_schedule_new(b.optim, steps, 9, 2, 0, NULL)).warnings,
                     0);
    assert_int_equal(two_epochs(tern_exponential_schedule_new(b.optim, steps, 0.99, NULL)).warnings, 0);
    close_bench(&b);
}

/* ---- what cannot be ---- */

static void expect_refused(const bench *b, const tern_schedule *got, tern_error *err, int code,
                           const char *func, const char *text)
{
    assert_null(got);
    assert_int_equal(err->code, code);
    assert_string_equal(err->text, text);
    assert_string_equal(err->func, func);
    assert_true(rate(b) == 0.001);
    *err = (tern_error){0};
}

static void numbers_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(0.001);
    tern_optim *o = b.optim;
    tern_error err = {0};
    const tern_unit unit = TERN_UNIT_STEPS;
    const int range = TERN_E_RANGE;
    expect_refused(&b, tern_cosine_schedule_new(o, unit, 0, 0, &err), &err, range, "tern_cosine_schedule_new",
                   "warm-up of 0 in 0: expected 0 <= warm-up <= total and total > 0");
    expect_refused(&b, tern_cosine_schedule_new(o, unit, -1, 5, &err), &err, range,
                   "tern_cosine_schedule_new",
                   "warm-up of -1 in 5: expected 0 <= warm-up <= total and total > 0");
    expect_refused(&b, tern_cosine_schedule_new(o, unit, 6, 5, &err), &err, range, "tern_cosine_schedule_new",
                   "warm-up of 6 in 5: expected 0 <= warm-up <= total and total > 0");
    expect_refused(&b, tern_step_schedule_new(o, unit, 0, 0.1, &err), &err, range, "tern_step_schedule_new",
                   "expected every >= 1, got 0");
    expect_refused(&b, tern_step_schedule_new(o, unit, 1, -0.1, &err), &err, range, "tern_step_schedule_new",
                   "expected gamma >= 0, got -0.1");
    expect_refused(&b, tern_exponential_schedule_new(o, unit, NAN, &err), &err, range,
                   "tern_exponential_schedule_new", "expected gamma >= 0, got nan");
    expect_refused(&b, tern_linear_schedule_new(o, unit, -1, 0.5, 7, &err), &err, range,
                   "tern_linear_schedule_new",
                   "from -1 to 0.5 in 7: expected start and end >= 0 and total > 0");
    expect_refused(&b, tern_linear_schedule_new(o, unit, 1, NAN, 7, &err), &err, range,
                   "tern_linear_schedule_new",
                   "from 1 to nan in 7: expected start and end >= 0 and total > 0");
    expect_refused(&b, tern_linear_schedule_new(o, unit, 1, 0.5, 0, &err), &err, range,
                   "tern_linear_schedule_new",
                   "from 1 to 0.5 in 0: expected start and end >= 0 and total > 0");
    const char *func = "tern_constant_schedule_new";
    expect_refused(&b, tern_constant_schedule_new(o, unit, -1, 7, &err), &err, range, func,
                   "expected factor >= 0, got -1");
    expect_refused(&b, tern_constant_schedule_new(o, unit, 1, 0, &err), &err, range, func,
                   "expected total >= 1, got 0");
    func = "tern_polynomial_schedule_new";
    expect_refused(&b, tern_polynomial_schedule_new(o, unit, 0, 1, &err), &err, range, func,
                   "expected total >= 1, got 0");
    expect_refused(&b, tern_polynomial_schedule_new(o, unit, 9, NAN, &err), &err, range, func,
                   "expected power >= 0, got nan");
    func = "tern_cosine_annealing_schedule_new";
    expect_refused(&b, tern_cosine_annealing_schedule_new(o, unit, 0, 0, &err), &err, range, func,
                   "expected total >= 1, got 0");
    expect_refused(&b, tern_cosine_annealing_schedule_new(o, unit, 9, -0.5, &err), &err, range, func,
                   "expected min >= 0, got -0.5");
    func = "tern_cosine_restarts_schedule_new";
    expect_refused(&b, tern_cosine_restarts_schedule_new(o, unit, 0, 1, 0, &err), &err, range, func,
                   "expected first >= 1, got 0");
    expect_refused(&b, tern_cosine_restarts_schedule_new(o, unit, 1, 0, 0, &err), &err, range, func,
                   "expected times >= 1, got 0");
    expect_refused(&b, tern_cosine_restarts_schedule_new(o, unit, 1, 1, -1, &err), &err, range, func,
                   "expected min >= 0, got -1");
    expect_refused(&b, tern_lambda_schedule_new(o, unit, NULL, NULL, &err), &err, TERN_E_INVALID,
                   "tern_lambda_schedule_new", "the function is NULL");
    close_bench(&b);
}

static void expect_no_cycle(int64_t total, tern_one_cycle_opts opts, int code, const char *text)
{
    bench b = open_bench(0.001);
    tern_error err = {0};
    expect_refused(&b, tern_one_cycle_schedule_new(b.optim, TERN_UNIT_STEPS, total, &opts, &err), &err, code,
                   "tern_one_cycle_schedule_new", text);
    close_bench(&b);
}

static void cycles_that_cannot_be(void **state)
{
    (void)state;
    tern_one_cycle_opts opts = tern_one_cycle_defaults();
    expect_no_cycle(
        9, opts, TERN_E_INVALID,
        "group 0 of sgd has no momentum to cycle: give it one > 0, or set cycle_momentum to false");
    opts.cycle_momentum = false;
    expect_no_cycle(0, opts, TERN_E_RANGE, "expected total >= 1, got 0");
    opts.pct_start = 1.5;
    expect_no_cycle(9, opts, TERN_E_RANGE, "expected pct_start from 0 to 1, got 1.5");
    opts = tern_one_cycle_defaults();
    opts.div_factor = 0;
    expect_no_cycle(9, opts, TERN_E_RANGE, "expected div_factor and final_div_factor > 0, got 0 and 10000");
    opts = tern_one_cycle_defaults();
    opts.max_momentum = 1;
    expect_no_cycle(9, opts, TERN_E_RANGE,
                    "expected base_momentum and max_momentum from 0 to below 1, got 0.85 and 1");
    opts.size = 0;
    expect_no_cycle(9, opts, TERN_E_INVALID,
                    "options: size is 0; start from what the _defaults function returns");
}

/* Adagrad has none; Adam's beta1 and RMSprop's momentum are cycled, and are the group's own again after. */
static void momentum_comes_back(void **state)
{
    (void)state;
    bench b = open_bench(0.001);
    tern_error err = {0};
    tern_optim *adagrad = tern_adagrad_new(b.net, NULL, &b.w.err),
               *adam = tern_adam_new(b.net, NULL, &b.w.err);
    assert_null(tern_one_cycle_schedule_new(adagrad, TERN_UNIT_STEPS, 9, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_non_null(strstr(err.text, "group 0 of adagrad has no momentum"));
    tern_schedule *cycle = tern_one_cycle_schedule_new(adam, TERN_UNIT_STEPS, 10, NULL, &b.w.err);
    const double *beta1 = &adam->groups[0].opts.adam.beta1;
    assert_true(*beta1 == 0.95);
    tern_schedule_step(cycle);
    tern_schedule_step(cycle);
    assert_true(*beta1 == 0.85);
    tern_schedule_free(cycle);
    assert_true(*beta1 == 0.9 && tern_optim_lr_get(adam, 0) == 0.001);
    assert_ok(b.w.err);
    tern_optim_free(adam);
    tern_optim_free(adagrad);
    close_bench(&b);
}

/* A group that is added later is scheduled too. */
static bool is_weight(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)parameter;
    return strstr(name, ctx) != NULL;
}

static void a_later_group_is_scheduled(void **state)
{
    (void)state;
    bench b = open_bench(0.5);
    tern_schedule *half = tern_constant_schedule_new(b.optim, TERN_UNIT_STEPS, 0.5, 2, &b.w.err);
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 8;
    assert_int_equal(tern_sgd_group_add(b.optim, is_weight, "weight", &opts, &b.w.err), 1);
    assert_true(rate(&b) == 0.25 && tern_optim_lr_get(b.optim, 1) == 4);
    tern_schedule_free(half);
    assert_true(rate(&b) == 0.5 && tern_optim_lr_get(b.optim, 1) == 8);
    close_bench(&b);
}

/* Periods that double until the numbers end. */
static void restarts_do_not_overflow(void **state)
{
    (void)state;
    bench b = open_bench(1);
    tern_schedule *s =
        tern_cosine_restarts_schedule_new(b.optim, TERN_UNIT_STEPS, INT64_C(1) << 60, 1000, 0, &b.w.err);
    s->t = (INT64_C(1) << 60) + 5;
    tern_schedule_step(s);
    assert_true(rate(&b) >= 0 && rate(&b) <= 1);
    tern_schedule_free(s);
    close_bench(&b);
}

static void milestones_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(0.001);
    tern_error err = {0};
    const tern_unit unit = TERN_UNIT_EPOCHS;
    const char *func = "tern_multi_step_schedule_new";
    const int64_t same[] = {3, 3}, negative[] = {-1};
    expect_refused(&b, tern_multi_step_schedule_new(b.optim, unit, 2, same, 0.1, &err), &err, TERN_E_RANGE,
                   func, "milestone 1 is 3: expected numbers from 0 on that rise");
    expect_refused(&b, tern_multi_step_schedule_new(b.optim, unit, 1, negative, 0.1, &err), &err,
                   TERN_E_RANGE, func, "milestone 0 is -1: expected numbers from 0 on that rise");
    expect_refused(&b, tern_multi_step_schedule_new(b.optim, unit, 0, same, 0.1, &err), &err, TERN_E_INVALID,
                   func, "expected at least one milestone, got 0");
    expect_refused(&b, tern_multi_step_schedule_new(b.optim, unit, 2, NULL, 0.1, &err), &err, TERN_E_INVALID,
                   func, "expected at least one milestone, got 0");
    expect_refused(&b, tern_multi_step_schedule_new(b.optim, unit, 2, (int64_t[]){1, 2}, -2, &err), &err,
                   TERN_E_RANGE, func, "expected gamma >= 0, got -2");
    close_bench(&b);
}

static double one(int64_t t, int group, void *ctx)
{
    (void)t;
    (void)group;
    (void)ctx;
    return 1;
}

static tern_schedule *new_one(int i, tern_optim *o, tern_unit unit, tern_error *err)
{
    tern_one_cycle_opts cycle = tern_one_cycle_defaults();
    cycle.cycle_momentum = false;
    switch (i) {
    case 0: return tern_step_schedule_new(o, unit, 1, 0.5, err);
    case 1: return tern_multi_step_schedule_new(o, unit, 1, (int64_t[]){1}, 0.5, err);
    case 2: return tern_exponential_schedule_new(o, unit, 0.5, err);
    case 3: return tern_linear_schedule_new(o, unit, 0.5, 1, 2, err);
    case 4: return tern_cosine_schedule_new(o, unit, 1, 2, err);
    case 5: return tern_constant_schedule_new(o, unit, 0.5, 1, err);
    case 6: return tern_polynomial_schedule_new(o, unit, 1, 1, err);
    case 7: return tern_cosine_annealing_schedule_new(o, unit, 1, 0, err);
    case 8: return tern_cosine_restarts_schedule_new(o, unit, 1, 1, 0, err);
    case 9: return tern_lambda_schedule_new(o, unit, one, NULL, err);
    default: return tern_one_cycle_schedule_new(o, unit, 1, &cycle, err);
    }
}

/* Every constructor, with these arguments and good ones besides. */
static void expect_all_refused(const bench *b, tern_optim *optim, int unit, tern_error before, int code,
                               const char *text)
{
    for (int i = 0; i < 11; i++) {
        tern_error err = before;
        assert_null(new_one(i, optim, (tern_unit)unit, &err));
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.text, text));
        assert_true(rate(b) == 0.001);
    }
}

static void no_optimizer_no_unit_no_memory(void **state)
{
    (void)state;
    bench b = open_bench(0.001);
    tern_error set = {.code = TERN_E_IO, .text = "earlier"};
    expect_all_refused(&b, NULL, TERN_UNIT_STEPS, (tern_error){0}, TERN_E_INVALID, "the optimizer is NULL");
    expect_all_refused(&b, b.optim, 2, (tern_error){0}, TERN_E_INVALID,
                       "unit 2: expected TERN_UNIT_STEPS or TERN_UNIT_EPOCHS");
    expect_all_refused(&b, b.optim, TERN_UNIT_STEPS, set, TERN_E_IO, "earlier");
    ledger books = {.refuse_at = 1, .refuse_all = true};
    ledger_open(&books);
    expect_all_refused(&b, b.optim, TERN_UNIT_STEPS, (tern_error){0}, TERN_E_MEMORY, "out of memory");
    books.refuse_all = false;
    books.refuse_at = atomic_load(&books.requests) + 2; /* the schedule after its milestones */
    tern_error err = {0};
    assert_null(tern_multi_step_schedule_new(b.optim, TERN_UNIT_STEPS, 1, (int64_t[]){1}, 0.5, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    ledger_close(&books);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(landmarks),
        cmocka_unit_test(schedules_come_and_go),
        cmocka_unit_test(a_schedule_that_ends_in_the_first_epoch_warns_once),
        cmocka_unit_test(numbers_that_cannot_be),
        cmocka_unit_test(milestones_that_cannot_be),
        cmocka_unit_test(cycles_that_cannot_be),
        cmocka_unit_test(momentum_comes_back),
        cmocka_unit_test(a_later_group_is_scheduled),
        cmocka_unit_test(restarts_do_not_overflow),
        cmocka_unit_test(no_optimizer_no_unit_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
