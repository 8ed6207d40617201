/* Sharded optimizers without memory, used wrongly, on ranks that differ, and when a rank fails. */
#include "optim/twins.h"

/* ---- memory ---- */

static _Thread_local long requests, refuse_at;

static void *counting_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    return ++requests == refuse_at ? NULL : aligned_alloc(align, tern__align_up(bytes, align));
}

static void counting_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_allocator_set(&(tern_allocator){counting_alloc, counting_free, NULL});
    twins t;
    long warm = 0;
    twins_open(&t, boot, *(twin_optim *)arg);
    for (int step = 0; step < 9; step++) {
        if (step == 4) warm = requests; /* both arenas have grown */
        twins_step(&t, &t.a, 0);
    }
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, warm > 0 && requests == warm);
    return twins_close(&t);
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    twin_optim makes[] = {twin_grouped_adamw, twin_grouped_lamb, twin_larc};
    for (size_t i = 0; i < TERN__COUNT(makes); i++) assert_ranks_ok(ranks_run(2, warm_body, &makes[i]));
}

/* The `at`th request of rank 1 in tern_optim_shard is refused: all ranks hear of it, one that is late still
 * in its earlier calls. */
static int refused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_allocator_set(&(tern_allocator){counting_alloc, counting_free, NULL});
    twins t;
    twins_open(&t, boot, NULL);
    t.a.optim = twin_adam(t.a.net, &t.err);
    requests = 0;
    refuse_at = rank == 1 ? *(int *)arg : 0;
    tern_optim_shard(t.a.optim, t.world, &t.err);
    refuse_at = 0;
    if (!t.err.code) tern_barrier(t.world, &t.err); /* it may have been the others' last word */
    RANK_CHECK(rank, t.err.code == (rank == 1 ? TERN_E_MEMORY : TERN_E_PEER));
    RANK_CHECK(rank, rank == 1 || strstr(t.err.text, "rank 1"));
    return twins_close(&t);
}

static void out_of_memory_reaches_all(void **state)
{
    (void)state;
    for (int at = 1; at <= 5; at++) assert_ranks_ok(ranks_run(2, refused_body, &at));
}

/* ---- wrong use ---- */

static int shard(twins *t, tern_optim *optim, int code, const char *text)
{
    tern_error err = {0};
    int status = tern_optim_shard(optim, t->world, &err);
    if (status == code && err.code == code && strstr(err.text, text)) return TERN_OK;
    fprintf(stderr, "rank %d: %s\n", t->rank, err.text);
    return 1;
}

/* A refusal ends the group, so each has its own. */
enum { NO_OPTIM, NO_DDP, IGNORED, TWICE, LATE, WRONG_USES };

/* A ddp that ignores a parameter, in the place of the twin's own. */
static void ignore_one(twins *t)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    const char *name = "b.bias";
    opts.ignore = &name;
    opts.ignore_count = 1;
    tern_ddp_free(t->a.ddp);
    t->a.ddp = tern_ddp_new(t->a.net, t->world, &opts, &t->err);
}

static int wrong_use_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    twins_open(&t, boot, *(int *)arg == NO_DDP || *(int *)arg == IGNORED ? NULL : twin_sgd);
    RANK_CHECK_OK(rank, t.err);
    tern_module *alone = tern_linear_new(3, 3, NULL, t.rng, &t.err);
    tern_optim *optim = tern_sgd_new(alone, NULL, &t.err);
    int status = 1;
    switch (*(int *)arg) {
    case NO_OPTIM: status = shard(&t, NULL, TERN_E_INVALID, "the optimizer is NULL"); break;
    case NO_DDP: status = shard(&t, optim, TERN_E_STATE, "linear has no ddp on this group"); break;
    case IGNORED:
        ignore_one(&t);
        t.a.optim = twin_sgd(t.a.net, &t.err);
        status = shard(&t, t.a.optim, TERN_E_INVALID, "\"b.bias\" is ignored by the ddp");
        break;
    case TWICE: status = shard(&t, t.a.optim, TERN_E_STATE, "the optimizer is sharded already"); break;
    case LATE:
        twins_step(&t, &t.b, 0);
        status = shard(&t, t.b.optim, TERN_E_STATE, "the optimizer has made a step; shard it before");
        break;
    }
    tern_error err = {0};
    RANK_CHECK(rank, tern_optim_shard(t.a.optim, NULL, &err) == TERN_E_INVALID && err.code == TERN_E_INVALID);
    tern_optim_free(optim);
    tern_module_free(alone);
    return status || twins_close(&t);
}

static void wrong_use_is_refused(void **state)
{
    (void)state;
    for (int use = 0; use < WRONG_USES; use++) assert_ranks_ok(ranks_run(1, wrong_use_body, &use));
}

static int set_error_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, NULL);
    t.a.optim = twin_sgd(t.a.net, &t.err);
    if (rank == 1) tern_idx_open("/nowhere/images.gz", "/nowhere/labels.gz", NULL, &t.err);
    RANK_CHECK(rank, tern_optim_shard(t.a.optim, t.world, &t.err) == t.err.code);
    RANK_CHECK(rank, t.err.code == (rank == 1 ? TERN_E_IO : TERN_E_PEER));
    RANK_CHECK(rank, strstr(t.err.text, "/nowhere/images.gz"));
    return twins_close(&t);
}

static void an_earlier_error_reaches_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, set_error_body, NULL));
}

/* ---- ranks that differ ---- */

enum { RATE, OPTIONS, MOMENTS, GRADIENTS, DIFFERENCES };

static tern_optim *odd_nesterov(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 0.01;
    opts.momentum = 0.8;
    opts.weight_decay = 0.01;
    return tern_sgd_new(module, &opts, err);
}

/* What its second pass is made with is the others'. */
static tern_optim *odd_lamb(tern_module *module, tern_error *err)
{
    tern_lamb_opts opts = tern_lamb_defaults();
    opts.lr = 0.01;
    opts.max_grad_norm = 0.5;
    return tern_lamb_new(module, &opts, err);
}

/* The last of three ranks is the odd one, from the third step on. */
static int differ_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int what = *(int *)arg, step = 0;
    bool odd = rank == 2;
    twins t;
    twin_optim make = what == MOMENTS          ? (odd ? odd_lamb : twin_lamb)
                      : odd && what == OPTIONS ? odd_nesterov
                                               : twin_nesterov;
    twins_open(&t, boot, make);
    for (; step < 4 && !t.err.code; step++) {
        if (step == 2 && odd && what == RATE) tern_optim_lr_set(t.a.optim, 0, 0.02);
        twins_backward(&t, &t.a, step);
        if (step == 2 && odd && what == GRADIENTS) tern_zero_grad(t.a.layers[1]);
        tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
    }
    RANK_CHECK(rank, t.err.code == TERN_E_MISMATCH);
    static const char *const texts[] = {
        [RATE] = "step 3 of a sharded optimizer: rank 2 updated its slice with other options or learning",
        [OPTIONS] = "step 1 of a sharded optimizer: rank 2 updated its slice with other options",
        [MOMENTS] = "step 1 of a sharded optimizer: rank 2 updated its slice with other options",
        [GRADIENTS] = "step 3); they updated different parameters: their gradients or groups differ",
    };
    if (!strstr(t.err.text, texts[what])) fprintf(stderr, "rank %d: %s\n", rank, t.err.text);
    RANK_CHECK(rank, strstr(t.err.text, texts[what]) && strstr(t.err.text, "rank 2"));
    return twins_close(&t);
}

static void ranks_that_differ_are_named(void **state)
{
    (void)state;
    for (int what = 0; what < DIFFERENCES; what++) assert_ranks_ok(ranks_run(3, differ_body, &what));
}

/* ---- a failed step ---- */

/* A scope that knows of no group still ends the step of the others. */
static int failed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_nesterov);
    tern_scope *alone = tern_scope_new(t.dev, NULL, &t.err);
    RANK_CHECK_OK(rank, t.err);
    twins_backward(&t, &t.a, 0);
    double before = twins_evaluate(&t);
    if (rank == 1) {
        tern_relu(alone, NULL);
        tern_optim_step(t.a.optim, alone);
        tern_scope_end(alone, &t.err);
        RANK_CHECK(rank, t.err.code == TERN_E_INVALID && twins_evaluate(&t) == before);
    } else {
        tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
        RANK_CHECK(rank, t.err.code == TERN_E_PEER && strstr(t.err.text, "rank 1"));
        RANK_CHECK(rank, strstr(t.err.text, "relu: input 0 is NULL"));
    }
    tern_scope_free(alone);
    return twins_close(&t);
}

static void a_failed_step_ends_that_of_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, failed_body, NULL));
}

/* Rank 1 forgets its step and goes on to the next backward, or to a barrier: nobody hangs, and the text shows
 * both. */
static int forgotten_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool to_barrier = *(bool *)arg;
    twins t;
    twins_open(&t, boot, twin_nesterov);
    for (int step = 0; step < 3 && !t.err.code; step++) {
        twins_backward(&t, &t.a, step);
        bool forgets = rank == 1 && step == 1;
        if (!forgets) tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
        if (forgets && to_barrier) tern_barrier(t.world, &t.err);
    }
    RANK_CHECK(rank, t.err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(t.err.text, "step 2)") && strstr(t.err.text, "rank 1"));
    RANK_CHECK(rank, strstr(t.err.text, to_barrier ? "barrier" : "backward 3"));
    RANK_CHECK(rank, !to_barrier || !strstr(t.err.text, "has done"));
    return twins_close(&t);
}

static void a_forgotten_step_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool to_barrier = i;
        assert_ranks_ok(ranks_run(2, forgotten_body, &to_barrier));
    }
}

static int killed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_adam);
    for (int step = 0; step < 1000000 && !t.err.code; step++) {
        twins_backward(&t, &t.a, step);
        if (rank == 1 && step == 20) kill(getpid(), SIGKILL);
        tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
    }
    RANK_CHECK(rank, t.err.code == TERN_E_PEER && strstr(t.err.text, "rank 1"));
    return twins_close(&t);
}

static void a_killed_rank_is_named(void **state)
{
    (void)state;
    ranks r = ranks_run(3, killed_body, NULL);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 128 + SIGKILL);
    assert_int_equal(r.status[2], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_step_allocates_nothing), cmocka_unit_test(out_of_memory_reaches_all),
        cmocka_unit_test(wrong_use_is_refused),          cmocka_unit_test(an_earlier_error_reaches_all),
        cmocka_unit_test(ranks_that_differ_are_named),   cmocka_unit_test(a_failed_step_ends_that_of_all),
        cmocka_unit_test(a_forgotten_step_is_named),     cmocka_unit_test(a_killed_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
