/* test_straggler.c - finding the slow rank: verdicts on given sums, and ranks of which one really is late. */
#include "parallel/net.h"

#include "comm/sys.h"
#include "parallel/straggler.h"

#include <stdatomic.h>
#include <sys/mman.h>

#define MS INT64_C(1000000)

/* ---- verdicts ---- */

typedef struct window {
    tern__straggler self;
    tern__waits sums[4];
    bool named[4];
} window;

/* Judges a window of 1000 ms and 100 steps in which rank r waited waited[r] ms, in steps[r] steps. */
static bool judge(window *w, int world, const int *waited, const int *steps)
{
    w->self.sums = w->sums;
    w->self.named = w->named;
    w->self.steps = 100;
    for (int r = 0; r < world; r++) w->sums[r] = (tern__waits){1000 * MS, waited[r] * MS, steps[r], 0};
    return tern__straggler_judge(&w->self, world);
}

#define SAYS(w, world, waited, steps) judge(w, world, (const int[4])waited, (const int[4])steps)
#define LIST(...)                                                                                            \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

static void the_one_that_waits_least_is_slow(void **state)
{
    (void)state;
    window w = {0};
    assert_true(SAYS(&w, 4, LIST(400, 410, 390, 20), LIST(100, 100, 100, 0)));
    assert_int_equal(w.self.rank, 3);
    assert_true(w.self.share == 0.38);
    w = (window){0};
    assert_true(SAYS(&w, 2, LIST(10, 300), LIST(0, 51)));
    assert_int_equal(w.self.rank, 0);
    assert_true(w.self.share == 0.29);
    w = (window){0};
    assert_true(SAYS(&w, 4, LIST(500, 0, 10, 500), LIST(90, 0, 2, 90))); /* of two, the slower one */
    assert_int_equal(w.self.rank, 1);
}

static void equal_ranks_are_not(void **state)
{
    (void)state;
    window w = {0};
    assert_false(SAYS(&w, 4, LIST(50, 50, 50, 50), LIST(0, 0, 0, 0)));
    assert_true(w.self.share == 0);
    assert_false(SAYS(&w, 4, LIST(300, 320, 290, 310), LIST(60, 60, 60, 60))); /* each rank in turn */
    assert_false(SAYS(&w, 2, LIST(0, 200), LIST(0, 100)));                     /* exactly a fifth, not more */
    assert_true(w.self.share == 0.2);
}

static void a_long_pause_is_not(void **state)
{
    (void)state;
    window w = {0};
    assert_false(SAYS(&w, 3, LIST(0, 800, 800), LIST(0, 3, 3)));
    assert_int_equal(w.self.rank, 0);
    assert_true(w.self.share == 0.8);
    assert_false(SAYS(&w, 3, LIST(0, 800, 800), LIST(0, 50, 50))); /* half is not most */
    assert_true(SAYS(&w, 3, LIST(0, 800, 800), LIST(0, 51, 50)));
}

static void a_rank_is_named_once_until_it_keeps_up(void **state)
{
    (void)state;
    window w = {0};
    assert_true(SAYS(&w, 2, LIST(400, 0), LIST(100, 0)));
    assert_false(SAYS(&w, 2, LIST(400, 0), LIST(100, 0)));
    assert_false(SAYS(&w, 2, LIST(150, 0), LIST(100, 0))); /* better, but not well */
    assert_false(SAYS(&w, 2, LIST(400, 0), LIST(100, 0)));
    assert_true(SAYS(&w, 2, LIST(0, 400), LIST(0, 100))); /* another rank */
    assert_false(SAYS(&w, 2, LIST(400, 0), LIST(100, 0)));
    assert_false(SAYS(&w, 2, LIST(99, 0), LIST(0, 0)));
    assert_true(SAYS(&w, 2, LIST(400, 0), LIST(100, 0)));
}

/* ---- ranks ---- */

static char warnings[4096];

static void remember(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    size_t used = strlen(warnings);
    if (level <= TERN_LOG_WARN) snprintf(warnings + used, sizeof(warnings) - used, "%s\n", text);
}

typedef struct job {
    int slow; /* rank */
    bool warn;
} job;

static void step_once(net *n, int64_t ns, tern_error *err)
{
    spins times = {.backward = ns};
    net_step(n, slow(n->scope, tern_forward(&n->base, n->scope, net_input(n)), times), err);
}

/* How many backwards the other ranks have started; shared by them. */
static atomic_long *begun;

/* The slow rank starts its backward after all others have started theirs, plus as long again and 10 ms. So
 * most of a step is their waiting, whatever a busy machine does to them. The slow rank sleeps meanwhile,
 * since the scheduler preempts first the process that has just used the CPU. */
static void step_unequally(net *n, int step, bool is_slow, tern_error *err)
{
    int64_t start = tern__now_ns();
    long others = tern_group_size(n->world) - 1;
    if (!is_slow) atomic_fetch_add(begun, 1);
    while (is_slow && atomic_load(begun) < others * (step + 1)) usleep(1000);
    if (is_slow) tern__poll(NULL, 0, 2 * tern__now_ns() - start + 10 * MS);
    step_once(n, MS / 2, err);
}

static ranks run(int world, ranks_body body, job j)
{
    begun = share_memory(sizeof(*begun));
    ranks r = ranks_run(world, body, &j);
    munmap(begun, sizeof(*begun));
    return r;
}

static int train_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    net n;
    if (rank == 0) tern_log_set(remember, NULL);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.straggler_warn = j->warn;
    net_open_with(&n, boot, NULL, &opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_stats s = {.size = sizeof(s)};
    int64_t began = tern__now_ns();
    long warm = 0;
    int step = 0;
    do {
        if (step == 4) warm = requests;
        step_unequally(&n, step, rank == j->slow, &err);
        tern_ddp_stats_get(n.ddp, &s, &err);
        RANK_CHECK_OK(rank, err);
    } while (++step < 10 || s.slow_rank < 0);
    RANK_CHECK(rank, requests == warm);
    RANK_CHECK(rank, tern__now_ns() - began > TERN__STRAGGLER_WINDOW);
    RANK_CHECK(rank, s.slow_rank == j->slow && s.slow_share > 0.2 && s.slow_share < 1);
    double root = s.slow_share;
    tern_broadcast(n.world, &root, 1, TERN_F64, 0, &err);
    RANK_CHECK(rank, s.slow_share == root);
    char expected[256], who[128];
    tern__group_describe(n.world, j->slow, who, sizeof(who));
    snprintf(expected, sizeof(expected),
             "%s is slow: the others waited %.0f %% of the last %d steps for it\n", who, 100 * s.slow_share,
             step - 2);
    RANK_CHECK(rank, rank != 0 || !strcmp(warnings, j->warn ? expected : ""));
    RANK_CHECK_OK(rank, err);
    net_close(&n);
    return 0;
}

static void a_rank_that_comes_later_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(run(3, train_body, (job){.slow = 0, .warn = true}));
}

static void nothing_is_said_where_nobody_wants_to_know(void **state)
{
    (void)state;
    assert_ranks_ok(run(4, train_body, (job){.slow = 2}));
}

/* ---- join: rank 0 has run out and waits for the remaining steps of the others ---- */

static int join_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    if (rank == 0) tern_log_set(remember, NULL);
    net_open(&n, boot, NULL, 0, &err);
    tern_ddp_stats s = {.size = sizeof(s)};
    int64_t began = tern__now_ns();
    if (rank == 0) tern_ddp_join(n.ddp, NULL, &err);
    for (int step = 0; rank > 0 && step < 110; step++) step_once(&n, 10 * MS, &err);
    if (rank > 0) tern_ddp_join(n.ddp, NULL, &err);
    RANK_CHECK(rank, tern__now_ns() - began > TERN__STRAGGLER_WINDOW);
    tern_ddp_stats_get(n.ddp, &s, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, s.iterations == (rank ? 110u : 0u) && s.slow_rank == -1 && !*warnings);
    for (int step = 0; s.slow_rank < 0; step++) { /* all ranks together again, and rank 1 is slow */
        step_unequally(&n, step, rank == 1, &err);
        tern_ddp_stats_get(n.ddp, &s, &err);
        RANK_CHECK_OK(rank, err);
    }
    RANK_CHECK(rank, s.slow_rank == 1 && (rank != 0 || strstr(warnings, "rank 1 (") == warnings));
    net_close(&n);
    return 0;
}

static void a_rank_in_join_makes_nobody_slow(void **state)
{
    (void)state;
    assert_ranks_ok(run(2, join_body, (job){0}));
}

static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    net n;
    net_open(&n, boot, NULL, 0, &err);
    for (int step = 0; step < 60; step++) step_once(&n, MS / 2, &err);
    tern_ddp_stats s = {.size = sizeof(s)};
    tern_ddp_stats_get(n.ddp, &s, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, s.iterations == 60 && s.slow_rank == -1 && s.slow_share == 0);
    net_close(&n);
    return 0;
}

static void a_rank_alone_waits_for_nobody(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, alone_body, NULL));
}

/* ---- memory: each allocation of rank 1's tern_ddp_new, among them those for the straggler check ---- */

typedef struct refusal {
    long number;   /* the allocation that fails, 0: none */
    long requests; /* the number of allocations */
} refusal;

static int memory_body(int rank, const tern__bootstrap *boot, void *arg)
{
    refusal *r = arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new(7, &err);
    tern_module *module = tern_linear_new(3, 2, NULL, rng, &err);
    tern__module_seal(module, &err);
    RANK_CHECK_OK(rank, err);
    long before = requests;
    if (rank == 1 && r->number) refuse_at = before + r->number;
    tern_ddp *ddp = tern_ddp_new(module, world, NULL, &err);
    refuse_at = 0;
    if (rank == 1) r->requests = requests - before;
    if (r->number) RANK_CHECK(rank, !ddp && err.code == (rank == 1 ? TERN_E_MEMORY : TERN_E_PEER));
    if (!r->number) RANK_CHECK_OK(rank, err);
    tern_ddp_free(ddp);
    tern_module_free(module);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void memory_may_run_out_on_one_rank(void **state)
{
    (void)state;
    refusal *r = share_memory(sizeof(*r));
    assert_ranks_ok(ranks_run(2, memory_body, r));
    long all = r->requests;
    assert_true(all > 8);
    for (r->number = 1; r->number <= all; r->number++) assert_ranks_ok(ranks_run(2, memory_body, r));
    munmap(r, sizeof(*r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_one_that_waits_least_is_slow),
        cmocka_unit_test(equal_ranks_are_not),
        cmocka_unit_test(a_long_pause_is_not),
        cmocka_unit_test(a_rank_is_named_once_until_it_keeps_up),
        cmocka_unit_test(a_rank_that_comes_later_is_named),
        cmocka_unit_test(nothing_is_said_where_nobody_wants_to_know),
        cmocka_unit_test(a_rank_in_join_makes_nobody_slow),
        cmocka_unit_test(memory_may_run_out_on_one_rank),
        cmocka_unit_test(a_rank_alone_waits_for_nobody),
    };
    requests_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
