/* Plateaus: the same on all ranks, and what cannot be. tests/torch/test_schedule.py compares them with
 * PyTorch's. */
#include "optim/twins.h"

#include <string.h>

/* ---- ranks ---- */

/* Every rank has a metric of its own, of which rank 0's becomes no better after the second. */
static int metric_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_nesterov);
    tern_plateau_opts opts = tern_plateau_defaults();
    opts.patience = 1;
    tern_schedule *plateau = tern_plateau_schedule_new(t.a.optim, &opts, &t.err);
    double before = tern_optim_lr_get(t.a.optim, 0);
    for (int epoch = 0; epoch < 4; epoch++) {
        double metric = rank ? (double)(-rank * epoch) : epoch ? 2 : 3;
        RANK_CHECK(rank, tern_optim_lr_get(t.a.optim, 0) == before);
        RANK_CHECK(rank, tern_schedule_metric(plateau, metric, &t.err) == TERN_OK);
    }
    RANK_CHECK(rank, tern_optim_lr_get(t.a.optim, 0) == before * 0.1);
    twins_step(&t, &t.a, 0); /* whose ranks compare their rates */
    RANK_CHECK_OK(rank, t.err);
    tern_schedule_free(plateau);
    return twins_close(&t);
}

static void the_metric_of_rank_0_counts(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, metric_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, metric_body, NULL));
}

/* Rank 0 fails instead of telling its metric: the others' call ends with it. */
static int failed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_nesterov);
    tern_schedule *plateau = tern_plateau_schedule_new(t.a.optim, NULL, &t.err);
    tern_error own = {0};
    if (rank == 0) {
        tern_idx_open("/nowhere/images.gz", "/nowhere/labels.gz", NULL, &own);
        tern__group_fail(t.world, &own);
    } else {
        /* One that is late hears of it while it still opens. */
        RANK_CHECK(rank,
                   tern_schedule_metric(plateau, 1, &t.err) == TERN_E_PEER && t.err.code == TERN_E_PEER);
    }
    tern_schedule_free(plateau);
    return twins_close(&t);
}

static void a_peer_that_fails_ends_the_call(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, failed_body, NULL));
}

/* ---- alone ---- */

static void expect_no_plateau(tern_optim *optim, tern_plateau_opts opts, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_plateau_schedule_new(optim, &opts, &err));
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_plateau_schedule_new");
    assert_string_equal(err.text, text);
}

static void what_cannot_be(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = tern_linear_new(2, 2, NULL, rng, &err);
    tern_optim *optim = tern_sgd_new(net, NULL, &err);
    tern_plateau_opts opts = tern_plateau_defaults();
    expect_no_plateau(NULL, opts, TERN_E_INVALID, "the optimizer is NULL");
    opts.factor = 1;
    expect_no_plateau(optim, opts, TERN_E_RANGE, "expected factor from 0 to below 1, got 1");
    opts = tern_plateau_defaults();
    opts.patience = -1;
    expect_no_plateau(optim, opts, TERN_E_RANGE, "expected patience and cooldown >= 0, got -1 and 0");
    opts = tern_plateau_defaults();
    opts.min = NAN;
    expect_no_plateau(optim, opts, TERN_E_RANGE,
                      "expected threshold, min and eps >= 0 and a finite min, got 0.0001, nan and 1e-08");
    opts.min = INFINITY;
    expect_no_plateau(optim, opts, TERN_E_RANGE,
                      "expected threshold, min and eps >= 0 and a finite min, got 0.0001, inf and 1e-08");
    opts.size = 0;
    expect_no_plateau(optim, opts, TERN_E_INVALID,
                      "options: size is 0; start from what the _defaults function returns");
    tern_schedule *step = tern_step_schedule_new(optim, TERN_UNIT_EPOCHS, 1, 0.5, &err);
    tern_error e = {0};
    assert_int_equal(tern_schedule_metric(step, 1, &e), TERN_E_INVALID);
    assert_string_equal(e.text, "expected a plateau schedule, got another");
    assert_int_equal(tern_schedule_metric(NULL, 1, NULL), TERN_E_INVALID);
    assert_int_equal(tern_schedule_metric(step, 1, &(tern_error){.code = TERN_E_IO}), TERN_E_IO);
    assert_true(tern_optim_lr_get(optim, 0) == 0.001);
    assert_int_equal(err.code, TERN_OK);
    tern_schedule_free(step);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_rng_free(rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_metric_of_rank_0_counts),
        cmocka_unit_test(a_peer_that_fails_ends_the_call),
        cmocka_unit_test(what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
