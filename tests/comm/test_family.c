/* test_family.c - a group and the groups made from it fail together: whatever fails in one, all ranks of all
 * groups get the same error at once. */
#include "ledger.h"
#include "ranks.h"

#include "comm/move/backend.h"

#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>

typedef struct board {
    atomic_int phase;
    atomic_int arrived;
    _Atomic(int64_t) failed_ns; /* when rank 2 made the family fail */
    _Atomic(int64_t) heard_ns;  /* when the last rank got the error */
    int variant;
} board;

static void board_free(board *b)
{
    munmap(b, sizeof(*b));
}

static tern_group_opts timeout_of(double seconds)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = seconds;
    return opts;
}

static tern_group *open_world(const tern__bootstrap *boot, tern_error *err)
{
    tern_group_opts opts = timeout_of(20);
    return tern__group_open_boot(boot, &opts, err);
}

/* ---- a failure in one group, and the ranks that are told ---- */

enum { KILL, ABORT, MISTAKE, MISMATCH, WINDOW, LEAVE, LEAVE_WINDOW, SLEEP, LIST, OPTS, WORLD, VARIANTS };

/* Five ranks: rank 2 fails in group {0, 2}; {1, 3} and {4} are other groups. */
typedef struct variant {
    int own;              /* rank 2's error code */
    int peer, far;        /* the codes of rank 0, and of 1, 3 and 4 */
    const char *expected; /* in every rank's error but rank 2's */
} variant;

static const variant variants[VARIANTS] = {
    [KILL] = {0, TERN_E_PEER, TERN_E_PEER, ") was lost: killed or exited"},
    [ABORT] = {TERN_E_IO, TERN_E_PEER, TERN_E_PEER, ") failed: the disk is full"},
    [MISTAKE] = {TERN_E_INVALID, TERN_E_PEER, TERN_E_PEER, ") failed: buffer is NULL"},
    [MISMATCH] = {TERN_E_MISMATCH, TERN_E_MISMATCH, TERN_E_MISMATCH,
                  "rank 2: all_reduce of 2 f32, sum (work 2); in the group of ranks 0, 2"},
    [WINDOW] = {TERN_E_MISMATCH, TERN_E_MISMATCH, TERN_E_MISMATCH, "; in the group of ranks 0, 2"},
    [LEAVE] =
        {0, TERN_E_PEER, TERN_E_PEER,
         ") has closed its group while rank 0 waits in all_reduce of 1 f32, sum (work 2); in the group of "
         "ranks 0, 2"},
    [LEAVE_WINDOW] = {0, TERN_E_PEER, TERN_E_PEER, ") has closed its group while rank 0 opens a window"},
    [SLEEP] = {TERN_E_TIMEOUT, TERN_E_TIMEOUT, TERN_E_TIMEOUT,
               "rank 0 waited 0.3 s in all_reduce of 1 f32, sum (work 2); not called by rank 2 ("},
    [LIST] = {TERN_E_INVALID, TERN_E_PEER, TERN_E_PEER, ") failed: ranks[1] is 2, expected 0 to 1"},
    [OPTS] = {TERN_E_RANGE, TERN_E_PEER, TERN_E_PEER, ") failed: timeout_s is 0, expected more than 0"},
    [WORLD] = {TERN_E_IO, TERN_E_PEER, TERN_E_PEER, ") failed: the disk is full"},
};

/* Opens a window of tern's own, as a ddp does. */
static void open_window(tern_group *group, size_t bytes, tern_error *err)
{
    uint32_t window;
    if (group->backend->window_open(group->state, &(tern__window_opts){.bytes = bytes}, &window, err))
        tern__group_fail(group, err);
}

static void do_wrong(board *b, tern_group *world, tern_group **group, tern_error *err)
{
    const tern_group_opts none = {.size = sizeof(none), .connect_timeout_s = 1, .timeout_s = 0};
    const int list[] = {0, 2};
    float x[2] = {0};
    atomic_store(&b->failed_ns, tern__now_ns());
    switch (b->variant) {
    case KILL: raise(SIGKILL); break;
    case ABORT: tern_group_abort(*group, TERN_E_IO, "the disk is full"); break;
    case MISTAKE: tern_all_reduce(*group, NULL, 1, TERN_F32, TERN_SUM, err); break;
    case MISMATCH: tern_all_reduce(*group, x, 2, TERN_F32, TERN_SUM, err); break;
    case WINDOW: open_window(*group, 200, err); break;
    case LEAVE:
    case LEAVE_WINDOW:
        tern_group_close(*group);
        *group = NULL;
        await_count(&b->phase, 4);
        break;
    case SLEEP: await_count(&b->phase, 4); break;
    case LIST: tern_group_new(*group, list, 2, NULL, err); break;
    case OPTS: tern_group_split(*group, 0, 0, &none, err); break;
    case WORLD: tern_group_abort(world, TERN_E_IO, "the disk is full"); break;
    }
}

/* The ranks' calls until they get the error: rank 0's in the failing group, the others' in their own groups.
 */
static void go_on(board *b, int rank, tern_group *group, tern_error *err)
{
    int64_t deadline = tern__now_ns() + INT64_C(10000000000);
    float x = 0;
    if (rank == 0 && b->variant == WINDOW) open_window(group, 100, err);
    if (rank == 0 && b->variant == LEAVE_WINDOW) tern_group_mem_alloc(group, 100, err);
    if (rank == 0 && (b->variant == LIST || b->variant == OPTS)) tern_group_split(group, 0, 0, NULL, err);
    while (!err->code && tern__now_ns() < deadline) tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, err);
}

static int check_heard(const board *b, int rank, const tern_error *err)
{
    const variant *v = &variants[b->variant];
    int code = rank == 0 ? v->peer : v->far;
    if (err->code != code || !strstr(err->text, v->expected))
        fprintf(stderr, "rank %d, variant %d: %s: %s\n", rank, b->variant, tern_status_name(err->code),
                err->text);
    RANK_CHECK(rank, err->code == code && strstr(err->text, v->expected));
    RANK_CHECK(rank, strstr(err->text, "rank 2") != NULL);
    return 0;
}

/* Every later call on any group returns the same error. */
static int check_sticky(int rank, tern_group *world, tern_group *group, const tern_error *err)
{
    tern_group *groups[] = {world, group};
    for (int i = 0; i < 2; i++) {
        tern_error again = {0};
        if (!groups[i]) continue;
        RANK_CHECK(rank, tern_barrier(groups[i], &again) == err->code && !strcmp(again.text, err->text));
        again = (tern_error){0};
        RANK_CHECK(rank, !tern_group_split(groups[i], 0, 0, NULL, &again) && again.code == err->code);
    }
    return 0;
}

static int failing_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 0;
    tern_group_opts opts = timeout_of(b->variant == SLEEP && rank == 0 ? 0.3 : 15);
    tern_group *world = open_world(boot, &err);
    tern_group *group = tern_group_split(world, rank == 4 ? 2 : rank % 2, 0, &opts, &err);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->arrived, 1);
    RANK_CHECK(rank, await_count(&b->arrived, 5));
    if (rank == 2) {
        do_wrong(b, world, &group, &err);
        RANK_CHECK(rank, b->variant == SLEEP || err.code == variants[b->variant].own ||
                             (!err.code && (b->variant == ABORT || b->variant == WORLD)));
    } else {
        go_on(b, rank, group, &err);
        atomic_store(&b->heard_ns, tern__now_ns());
        atomic_fetch_add(&b->phase, 1);
        if (check_heard(b, rank, &err)) return 1;
    }
    if (err.code && check_sticky(rank, world, group, &err)) return 1;
    tern_group_close(world);
    tern_group_close(group);
    return 0;
}

static void check_variant(board *b, const ranks *r)
{
    for (int rank = 0; rank < 5; rank++)
        assert_int_equal(r->status[rank], rank == 2 && b->variant == KILL ? 128 + SIGKILL : 0);
    double seconds = (double)(atomic_load(&b->heard_ns) - atomic_load(&b->failed_ns)) * 1e-9;
    assert_true(seconds < RANKS_SOON_S); /* well below the timeout of 15 s */
}

static void test_family_fails_as_a_whole(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        board *b = share_memory(sizeof(board));
        b->variant = v;
        ranks r = ranks_run(5, failing_body, b);
        check_variant(b, &r);
        board_free(b);
    }
}

static void test_family_of_threads(void **state)
{
    (void)state;
    for (int v = KILL + 1; v < VARIANTS; v++) {
        board *b = share_memory(sizeof(board));
        b->variant = v;
        ranks r = ranks_run_threads(5, failing_body, b);
        check_variant(b, &r);
        board_free(b);
    }
}

/* ---- a descriptor that is read long after its sender has left ---- */

enum { STALLED = 1, OPENS, LEFT };

/* Keeps the control thread from reading, as a busy machine does. */
static void stall_control(void *ctx)
{
    board *b = ctx;
    int begins = 0;
    if (!atomic_compare_exchange_strong(&b->phase, &begins, STALLED)) return;
    await_count(&b->phase, LEFT);
    usleep(1500000);
}

static int slow_reader_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *world = open_world(boot, &err), *group = tern_group_split(world, 0, 0, NULL, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) tern__control_tick_set(world->control, stall_control, b);
    RANK_CHECK(rank, await_count(&b->phase, STALLED));
    if (rank == 0) atomic_store(&b->phase, OPENS);
    RANK_CHECK(rank, await_count(&b->phase, OPENS));
    open_window(group, 100, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(group);
    if (rank == 1) atomic_store(&b->phase, LEFT);
    tern_barrier(world, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) tern__control_tick_set(world->control, NULL, NULL);
    tern_group_close(world);
    return 0;
}

static void test_what_a_rank_sent_before_it_left_is_awaited(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(board));
    assert_ranks_ok(ranks_run(2, slow_reader_body, b));
    board_free(b);
}

/* ---- making a group together ---- */

enum { OTHER_LIST, OTHER_CALL, DIES, LEAVES, CALLS_ELSE, DISAGREEMENTS };

static const struct {
    int code;
    const char *expected;
} disagreements[] = {
    [OTHER_LIST] = {TERN_E_MISMATCH, "rank 2 lists other ranks for the new group than rank 0"},
    [OTHER_CALL] = {TERN_E_MISMATCH, "rank 0 calls tern_group_new, but rank 2 tern_group_split"},
    [DIES] = {TERN_E_PEER, ") was lost: killed or exited"},
    [LEAVES] = {TERN_E_PEER, ") has closed its group while rank "},
    [CALLS_ELSE] = {TERN_E_MISMATCH, "rank 2: barrier (work 1)"},
};

static int disagreeing_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    const int here[] = {0, 1}, there[] = {0, 2};
    tern_group *world = open_world(boot, &err), *group = NULL;
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->arrived, 1);
    RANK_CHECK(rank, await_count(&b->arrived, 4));
    if (rank == 2 && b->variant == DIES) raise(SIGKILL);
    if (rank != 2) group = tern_group_new(world, here, 2, NULL, &err);
    if (rank == 2 && b->variant == OTHER_LIST) group = tern_group_new(world, there, 2, NULL, &err);
    if (rank == 2 && b->variant == OTHER_CALL) group = tern_group_split(world, 0, 0, NULL, &err);
    if (rank == 2 && b->variant == CALLS_ELSE) tern_barrier(world, &err);
    RANK_CHECK(rank, !group);
    if (rank != 2 || b->variant != LEAVES) {
        if (!strstr(err.text, disagreements[b->variant].expected)) tern_error_print(&err);
        RANK_CHECK(rank, err.code == disagreements[b->variant].code);
        RANK_CHECK(rank, strstr(err.text, disagreements[b->variant].expected));
        RANK_CHECK(rank, strstr(err.text, "rank 2"));
    }
    tern_group_close(world);
    return 0;
}

static void test_ranks_disagree_on_a_group(void **state)
{
    (void)state;
    for (int v = 0; v < DISAGREEMENTS; v++) {
        board *b = share_memory(sizeof(board));
        b->variant = v;
        ranks r = ranks_run(4, disagreeing_body, b);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(r.status[rank], rank == 2 && v == DIES ? 128 + SIGKILL : 0);
        board_free(b);
    }
}

/* All ranks make and use groups in a loop until one is killed at a random point. */
static int making_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *world = open_world(boot, &err);
    for (int round = 0; !err.code; round++) {
        float x = 1;
        tern_group *group = tern_group_split(world, round % 2 ? rank % 2 : 0, -rank, NULL, &err);
        if (group) tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
        RANK_CHECK(rank, err.code || x == (float)tern_group_size(group));
        tern_group_close(group);
        if (round == 5) atomic_fetch_add(&b->arrived, 1);
    }
    atomic_store(&b->heard_ns, tern__now_ns());
    if (!strstr(err.text, "rank 1 (")) tern_error_print(&err);
    RANK_CHECK(rank, err.code == TERN_E_PEER && strstr(err.text, "rank 1 (") && strstr(err.text, "was lost"));
    tern_group_close(world);
    return 0;
}

static void test_killed_while_making_groups(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        board *b = share_memory(sizeof(board));
        ranks r = ranks_start(4, making_body, b);
        assert_true(await_count(&b->arrived, 4));
        usleep((useconds_t)(round * 137)); /* at another point of a round each time */
        int64_t killed_ns = tern__now_ns();
        kill(r.pids[1], SIGKILL);
        ranks_wait(&r);
        for (int rank = 0; rank < 4; rank++) assert_int_equal(r.status[rank], rank == 1 ? 128 + SIGKILL : 0);
        assert_true(atomic_load(&b->heard_ns) - killed_ns < RANKS_SOON_S * INT64_C(1000000000));
        board_free(b);
    }
}

/* Rank 1's `variant`-th allocation in the split fails. */
static int poor_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    ledger books = {0};
    ledger_open(&books);
    tern_group *world = open_world(boot, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->arrived, 1);
    RANK_CHECK(rank, await_count(&b->arrived, 2));
    if (rank == 1) books.refuse_at = atomic_load(&books.requests) + b->variant;
    tern_group *group = tern_group_split(world, 0, 0, NULL, &err);
    if (rank == 1 && !err.code) atomic_store(&b->phase, 1);
    if (err.code) {
        RANK_CHECK(rank, !group && (err.code == TERN_E_MEMORY || (rank == 0 && err.code == TERN_E_PEER)));
        RANK_CHECK(rank, rank == 1 || (strstr(err.text, "rank 1 (") && strstr(err.text, "memory")));
    }
    tern_group_close(group);
    tern_group_close(world);
    tern__allocator_replace(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 0;
}

static void test_no_memory_for_a_group(void **state)
{
    (void)state;
    bool was_enough = false;
    int requests = 0;
    while (!was_enough && requests < 40) {
        board *b = share_memory(sizeof(board));
        b->variant = ++requests;
        assert_ranks_ok(ranks_run(2, poor_body, b));
        was_enough = atomic_load(&b->phase);
        board_free(b);
    }
    assert_in_range(requests, 8, 39);
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    const tern__bootstrap boot = {.world = 1, .local_world = 1, .listen_fd = -1, .source = "alone"};
    const struct {
        int list[3], count;
        const char *expected;
    } cases[] = {{{0}, 0, "0 ranks, expected at least 1"},
                 {{-1}, 1, "ranks[0] is -1, expected 0 to 0"},
                 {{0, 1}, 2, "ranks[1] is 1, expected 0 to 0"},
                 {{0, 0, 0}, 3, "ranks[1] is 0, which is listed already"}};
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        tern_error err = {0};
        tern_group *world = tern__group_open_boot(&boot, NULL, &err);
        assert_null(tern_group_new(world, cases[i].list, cases[i].count, NULL, &err));
        assert_int_equal(err.code, TERN_E_INVALID);
        assert_string_equal(err.text, cases[i].expected);
        assert_null(tern_group_split(world, 0, 0, NULL, &err)); /* a set error: does nothing */
        tern_group_close(world);
    }
    tern_error err = {0}, again = {0};
    assert_null(tern_group_split(NULL, 0, 0, NULL, &err));
    assert_null(tern_group_new(NULL, NULL, 0, NULL, &again));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "parent is NULL");
    assert_int_equal(again.code, TERN_E_INVALID);
    assert_string_equal(again.text, "parent is NULL");
    assert_int_equal(tern_group_world_rank(NULL, 0), -1);
}

/* ---- a parent that is closed ---- */

/* All have closed the world and go on in the groups made from it. There rank 2 is killed. */
static int orphan_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern_group *world = open_world(boot, &err);
    tern_group *group = tern_group_split(world, rank % 2, 0, NULL, &err);
    tern_group_close(world);
    for (int i = 0; i < 10; i++) tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x == 1024);
    atomic_fetch_add(&b->arrived, 1);
    RANK_CHECK(rank, await_count(&b->arrived, 4));
    if (rank == 2) raise(SIGKILL);
    while (!tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err)) continue;
    RANK_CHECK(rank, err.code == TERN_E_PEER && strstr(err.text, "rank 2 (") && strstr(err.text, "was lost"));
    tern_group_close(group);
    return 0;
}

static void test_groups_outlive_their_parent(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(board));
    ranks r = ranks_run(4, orphan_body, b);
    for (int rank = 0; rank < 4; rank++) assert_int_equal(r.status[rank], rank == 2 ? 128 + SIGKILL : 0);
    board_free(b);
}

/* Rank 2 has closed the world only. A rank that waits for it there gets an error, although its group lives
 * on. */
static int quitter_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *world = open_world(boot, &err);
    tern_group *group = tern_group_split(world, rank % 2, 0, NULL, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->arrived, 1);
    RANK_CHECK(rank, await_count(&b->arrived, 3)); /* a group that is still being opened would fail, too */
    if (rank == 2) {
        tern_group_close(world);
        RANK_CHECK(rank, await_count(&b->phase, 2));
        RANK_CHECK(rank, tern_barrier(group, &err) == TERN_E_PEER);
    } else {
        RANK_CHECK(rank, tern_barrier(world, &err) == TERN_E_PEER);
        atomic_fetch_add(&b->phase, 1);
        tern_group_close(world);
    }
    RANK_CHECK(rank, strstr(err.text, "rank 2 (") && strstr(err.text, ") has closed its group while rank "));
    RANK_CHECK(rank, strstr(err.text, "in barrier (work 2)") && !strstr(err.text, "in the group of"));
    tern_group_close(group);
    return 0;
}

static void test_rank_leaves_the_parent_only(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(board));
    assert_ranks_ok(ranks_run(3, quitter_body, b));
    board_free(b);
}

/* ---- works that were done before a failure ---- */

static bool hears_failure(const tern_group *group)
{
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    while (tern__control_is_healthy(group->control) && tern__now_ns() < deadline) usleep(200);
    return !tern__control_is_healthy(group->control);
}

/* Rank 0 has posted works that the others finish without it, and one more, when rank 2 fails. The posts of
 * the sum of one element carry its data; other ranks compute the sum of many for rank 0. */
static int late_look_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1, y = 1, many[3000] = {[2999] = 1};
    tern_group *world = open_world(boot, &err);
    RANK_CHECK_OK(rank, err);
    tern_work *sums = tern_all_reduce_post(world, many, 3000, TERN_F32, TERN_SUM, &err);
    tern_work *sum = tern_all_reduce_post(world, &x, 1, TERN_F32, TERN_SUM, &err);
    tern_work *barrier = tern_barrier_post(world, &err);
    if (rank) {
        RANK_CHECK(rank, !tern_work_wait(sum, &err) && !tern_work_wait(barrier, &err) && x == 3);
        RANK_CHECK(rank, !tern_work_wait(sums, &err) && many[2999] == 3);
        atomic_fetch_add(&b->arrived, 1);
        RANK_CHECK(rank, await_count(&b->arrived, 3));
        if (rank == 2 && b->variant == KILL) raise(SIGKILL);
        if (rank == 2) tern_group_abort(world, TERN_E_IO, "the disk is full");
    } else {
        tern_work *more = tern_all_reduce_post(world, &y, 1, TERN_F32, TERN_SUM, &err);
        atomic_fetch_add(&b->arrived, 1);
        RANK_CHECK(rank, hears_failure(world));
        RANK_CHECK(rank, !tern_work_test(barrier, &err) && !tern_work_wait(sum, &err) && x == 3);
        RANK_CHECK(rank, !tern_work_wait(barrier, &err) && !err.code);
        RANK_CHECK(rank, !tern_work_wait(sums, &err) && many[2999] == 3);
        RANK_CHECK(rank, tern_work_wait(more, &err) == TERN_E_PEER && strstr(err.text, "rank 2 (") && y == 1);
    }
    tern_group_close(world);
    return 0;
}

static void test_done_before_a_failure(void **state)
{
    (void)state;
    const int wrongs[] = {KILL, ABORT};
    for (size_t i = 0; i < TERN__COUNT(wrongs); i++) {
        board *b = share_memory(sizeof(board));
        b->variant = wrongs[i];
        ranks r = ranks_run(3, late_look_body, b);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(r.status[rank], rank == 2 && b->variant == KILL ? 128 + SIGKILL : 0);
        board_free(b);
    }
}

/* ---- forks, and groups opened and closed in a loop ---- */

static int fork_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0}, in_child = {0};
    int status = -1;
    float x = 1;
    tern_group *world = open_world(boot, &err);
    tern_group *group = tern_group_split(world, 0, -rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    pid_t child = fork();
    if (child == 0) {
        bool is_refused = !tern_group_split(group, 0, 0, NULL, &in_child) && in_child.code == TERN_E_FORKED;
        tern_group_close(group);
        tern_group_close(world);
        _exit(!is_refused);
    }
    RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x == 2);
    tern_group_close(group);
    tern_group_close(world);
    return 0;
}

static void test_forked_child_is_refused_and_harmless(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, fork_body, NULL));
}

static int count_entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    while (dir && readdir(dir)) count++;
    closedir(dir);
    return count;
}

static int many_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    ledger books = {0};
    int fds = 0, live = 0;
    ledger_open(&books);
    tern_group *world = open_world(boot, &err);
    for (int i = 0; i < 50; i++) {
        float x = 1;
        tern_group *group = tern_group_split(world, 0, rank % 2, NULL, &err);
        tern_group_mem_alloc(group, 100, &err);
        tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, x == (float)tern_group_size(group));
        tern_group_close(group);
        tern_barrier(world, &err);
        int open = count_entries("/proc/self/fd"), blocks = atomic_load(&books.live);
        RANK_CHECK(rank, i < 10 || (open == fds && blocks == live));
        fds = open;
        live = blocks;
        tern_barrier(world, &err); /* so that no rank has sent a descriptor for the next group yet */
    }
    tern_group_close(world);
    tern__allocator_replace(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 0;
}

static void test_fifty_groups_leave_nothing(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, many_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_family_fails_as_a_whole),
        cmocka_unit_test(test_family_of_threads),
        cmocka_unit_test(test_what_a_rank_sent_before_it_left_is_awaited),
        cmocka_unit_test(test_ranks_disagree_on_a_group),
        cmocka_unit_test(test_killed_while_making_groups),
        cmocka_unit_test(test_no_memory_for_a_group),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_groups_outlive_their_parent),
        cmocka_unit_test(test_rank_leaves_the_parent_only),
        cmocka_unit_test(test_done_before_a_failure),
        cmocka_unit_test(test_forked_child_is_refused_and_harmless),
        cmocka_unit_test(test_fifty_groups_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
