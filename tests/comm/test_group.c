/* test_group.c - a group whose ranks disagree, leave, die, stop or fork. The kills and stops are real and
 * timed from the event, and no rank ever hangs. */
#include "ledger.h"
#include "ranks.h"

#include "comm/move/backend.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Shared by the test and its ranks. */
typedef struct board {
    atomic_int phase;           /* set by the test for the ranks, and by them for it */
    atomic_int rounds[8];       /* works done by each rank                        */
    atomic_int failures;        /* ranks that have returned an error */
    _Atomic(int64_t) failed_ns; /* when the last of them failed */
    size_t floats;
    bool plain;
    int variant, actor;
} board;

static board *board_new(void)
{
    return share_memory(sizeof(board));
}

static void board_free(board *b)
{
    munmap(b, sizeof(*b));
}

static tern_group *open_group(const tern__bootstrap *boot, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = 20;
    return tern__group_open_boot(boot, &opts, err);
}

/* ---- disagreeing ---- */

/* Rank 1 makes another call than the others. */
typedef struct variant {
    const char *name, *expected; /* in the errors of all ranks; rank 0's own */
} variant;

static const variant variants[] = {
    {"count", "rank 1: all_reduce of 101 f32, sum (work 2)"},
    {"shorter", "rank 1: all_reduce of 99 f32, sum (work 2)"},
    {"empty", "rank 1: all_reduce of 0 f32, sum (work 2)"},
    {"dtype", "rank 1: all_reduce of 100 i32, sum (work 2)"},
    {"op", "rank 1: all_reduce of 100 f32, max (work 2)"},
    {"kind", "rank 1: broadcast of 100 f32 from rank 0 (work 2)"},
    {"barrier", "rank 1: barrier (work 2)"},
    {"gather", "rank 1: all_gather to 300 f32 (work 2)"},
    {"product", "rank 1: all_reduce of 100 f32, product (work 2)"},
    {"half", "rank 1: all_reduce of 100 bf16, sum (work 2)"},
    {"scatter", "rank 1: reduce_scatter of 300 f32, min (work 2)"},
};

static void call_variant(int which, tern_group *group, float *plain, tern_error *err)
{
    float all[300] = {0};
    switch (which) {
    case 0: tern_all_reduce(group, plain, 101, TERN_F32, TERN_SUM, err); break;
    case 1: tern_all_reduce(group, plain, 99, TERN_F32, TERN_SUM, err); break;
    case 2: tern_all_reduce(group, plain, 0, TERN_F32, TERN_SUM, err); break;
    case 3: tern_all_reduce(group, plain, 100, TERN_I32, TERN_SUM, err); break;
    case 4: tern_all_reduce(group, plain, 100, TERN_F32, TERN_MAX, err); break;
    case 5: tern_broadcast(group, plain, 100, TERN_F32, 0, err); break;
    case 6: tern_barrier(group, err); break;
    case 7: tern_all_gather(group, plain, all, 100, TERN_F32, err); break;
    case 8: tern_all_reduce(group, plain, 100, TERN_F32, TERN_PRODUCT, err); break;
    case 9: tern_all_reduce(group, plain, 100, TERN_BF16, TERN_SUM, err); break;
    default: tern_reduce_scatter(group, all, plain, 100, TERN_F32, TERN_MIN, err); break;
    }
}

static int mismatch_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x[101] = {0};
    tern_group *group = open_group(boot, &err);
    if (b->variant % 2) tern_group_mem_alloc(group, sizeof(x), &err);
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1)
        call_variant(b->variant, group, x, &err);
    else
        tern_all_reduce(group, x, 100, TERN_F32, TERN_SUM, &err);
    if (!strstr(err.text, variants[b->variant].expected)) fprintf(stderr, "%s\n", err.text);
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "rank 0: all_reduce of 100 f32, sum (work 2)"));
    RANK_CHECK(rank, strstr(err.text, variants[b->variant].expected));
    tern_error again = {0};
    RANK_CHECK(rank, tern_barrier(group, &again) == TERN_E_MISMATCH && !strcmp(again.text, err.text));
    tern_group_close(group);
    return 0;
}

static void test_mismatch_is_told_to_all(void **state)
{
    (void)state;
    board *b = board_new();
    for (b->variant = 0; b->variant < (int)TERN__COUNT(variants); b->variant++)
        assert_ranks_ok(ranks_run(3, mismatch_body, b));
    board_free(b);
}

/* The roots differ in a posted work that no rank has waited for yet. */
static int root_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0}, later = {0};
    float x[4] = {0}, y[4] = {0};
    tern_group *group = open_group(boot, &err);
    tern_work *work = tern_broadcast_post(group, x, 4, TERN_F32, rank == 1, &err);
    RANK_CHECK_OK(rank, err);
    tern_work *next = tern_all_reduce_post(group, y, 4, TERN_F32, TERN_SUM, &later);
    RANK_CHECK(rank, tern_work_wait(work, &err) == TERN_E_MISMATCH);
    RANK_CHECK(rank,
               strstr(err.text, "rank 0: broadcast of 4 f32 from rank 0 (work 1); rank 1: broadcast of 4 "
                                "f32 from rank 1 (work 1)"));
    if (next) RANK_CHECK(rank, tern_work_wait(next, &later) == TERN_E_MISMATCH);
    tern_group_close(group);
    return 0;
}

static void test_mismatch_of_roots_in_flight(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, root_body, b));
    board_free(b);
}

/* More memory than any machine has: nothing is allocated, and no process is killed for it. */
static int huge_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !tern_group_mem_alloc(group, (size_t)1 << 50, &err));
    RANK_CHECK(rank, err.code == TERN_E_MEMORY ||
                         err.code == TERN_E_PEER); /* the latter if another rank failed first */
    RANK_CHECK(rank, strstr(err.text, "1125899906842624 bytes"));
    tern_group_close(group);
    return 0;
}

static void windows_beyond_the_machine_are_refused(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, huge_body, b));
    board_free(b);
}

static int window_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    tern_barrier(group, &err); /* else a rank may be told of the others' error while it opens the group */
    RANK_CHECK_OK(rank, err);
    uint32_t window;
    RANK_CHECK(rank, group->backend->window_open(
                         group->state, &(tern__window_opts){.bytes = rank == 2 ? 101 : 100}, &window, &err));
    if (err.code != TERN_E_MISMATCH) RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, strstr(err.text, "100") && strstr(err.text, "101"));
    tern_group_close(group);
    return 0;
}

static void test_windows_of_different_sizes(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, window_body, b));
    board_free(b);
}

/* ---- a rank's own mistakes, of which its peers are told ---- */

static int call_wrongly(int which, tern_group *group, float *window, tern_error *err)
{
    float x[8] = {0};
    switch (which) {
    case 0: return tern_all_reduce(group, NULL, 4, TERN_F32, TERN_SUM, err);
    case 1: return tern_all_reduce(group, x, 4, (tern_dtype)77, TERN_SUM, err);
    case 2: return tern_all_reduce(group, x, 4, TERN_F32, (tern_reduce_op)9, err);
    case 3: return tern_all_reduce(group, x, 4, TERN_I32, TERN_AVG, err);
    case 4: return tern_broadcast(group, x, 4, TERN_F32, 2, err);
    case 5: return tern_all_gather(group, x + 1, x, 2, TERN_F32, err);
    case 6: return tern_all_reduce(group, x, SIZE_MAX / 2, TERN_F64, TERN_SUM, err);
    case 7: return tern_all_reduce(group, window, 1 << 12, TERN_F32, TERN_SUM, err);
    case 8: return tern_all_reduce(group, x, 4, TERN_BOOL, TERN_AVG, err);
    case 9: return tern_reduce_scatter(group, x, x + 1, 2, TERN_F32, TERN_SUM, err);
    case 10: return tern_reduce_scatter(group, x, x + 4, 2, TERN_U8, TERN_AVG, err);
    case 11: return tern_reduce_scatter(group, window, x, 1 << 10, TERN_F32, TERN_SUM, err);
    default: return tern_reduce_scatter(group, x, NULL, 2, TERN_F32, TERN_SUM, err);
    }
}

static const int invalid_codes[] = {
    TERN_E_INVALID, TERN_E_DTYPE, TERN_E_INVALID, TERN_E_DTYPE, TERN_E_RANGE, TERN_E_INVALID, TERN_E_RANGE,
    TERN_E_RANGE,   TERN_E_DTYPE, TERN_E_INVALID, TERN_E_DTYPE, TERN_E_RANGE, TERN_E_INVALID};

static int invalid_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    float *window = tern_group_mem_alloc(group, 1 << 12, &err), x = 0;
    RANK_CHECK_OK(rank, err);
    if (rank == 1) {
        int code = call_wrongly(b->variant, group, window, &err);
        RANK_CHECK(rank, code == invalid_codes[b->variant] && err.code == code);
    } else {
        RANK_CHECK(rank, tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err) == TERN_E_PEER);
        RANK_CHECK(rank, strstr(err.text, "rank 1 ("));
    }
    tern_group_close(group);
    return 0;
}

static void test_own_mistake_ends_the_group(void **state)
{
    (void)state;
    board *b = board_new();
    for (b->variant = 0; b->variant < (int)TERN__COUNT(invalid_codes); b->variant++)
        assert_ranks_ok(ranks_run(2, invalid_body, b));
    board_free(b);
    tern_error err = {0};
    assert_int_equal(tern_barrier(NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_work_wait(NULL, NULL), TERN_E_INVALID);
}

static int abort_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err); /* the others may still be in here when they are told */
    if (rank == 2) tern_group_abort(group, TERN_E_IO, "the disk is full");
    tern_barrier(group, &err);
    RANK_CHECK(rank, err.code == (rank == 2 ? TERN_E_IO : TERN_E_PEER));
    RANK_CHECK(rank, strstr(err.text, "the disk is full"));
    if (rank != 2) RANK_CHECK(rank, strstr(err.text, "rank 2 ("));
    tern_group_close(group);
    return 0;
}

static void test_abort_names_rank_and_reason(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, abort_body, b));
    board_free(b);
}

/* ---- leaving early ---- */

static int leave_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern_group *group = open_group(boot, &err);
    for (int i = 0; i < 3; i++) tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    if (rank == 1) {
        RANK_CHECK_OK(rank,
                      err); /* the others may be told of the next failure before their third call returns */
        if (b->variant) _exit(0);
        tern_group_close(group);
        return 0;
    }
    RANK_CHECK(rank, tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err) == TERN_E_PEER);
    RANK_CHECK(rank, strstr(err.text, "rank 1 ("));
    if (b->variant)
        RANK_CHECK(rank, strstr(err.text, "was lost"));
    else
        RANK_CHECK(rank, strstr(err.text, ") has closed its group while rank ") &&
                             strstr(err.text, "in all_reduce of 1 f32, sum (work 4)"));
    tern_group_close(group);
    return 0;
}

static void test_rank_leaves_early(void **state)
{
    (void)state;
    board *b = board_new();
    for (b->variant = 0; b->variant < 2; b->variant++) assert_ranks_ok(ranks_run(3, leave_body, b));
    board_free(b);
}

/* ---- dying and stopping ---- */

enum { LOOPS, ENDS, STOPS, STOPPED };

/* All ranks reduce in a loop until the board's phase is ENDS or an error occurs. Sums stay exact. At STOPS
 * the actor stops, and the others go on with a short time-out at STOPPED. */
static int loop_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    float *x = b->plain ? malloc(b->floats * 4) : tern_group_mem_alloc(group, b->floats * 4, &err);
    RANK_CHECK_OK(rank, err);
    for (int round = 0; !err.code; round++) {
        int32_t phase = rank == 0 ? atomic_load(&b->phase) : LOOPS;
        tern_broadcast(group, &phase, 1, TERN_I32, 0, &err);
        if (phase == ENDS) break;
        if (phase == STOPS && rank == b->actor) raise(SIGSTOP);
        RANK_CHECK(rank, phase != STOPS || await_count(&b->phase, STOPPED));
        if (phase == STOPS) group->opts.timeout_s = 0.5;
        for (size_t i = 0; i < b->floats; i++) x[i] = (float)(round % 1000 + rank);
        tern_all_reduce(group, x, b->floats, TERN_F32, TERN_MAX, &err);
        for (size_t i = 0; i < b->floats && !err.code; i++)
            RANK_CHECK(rank, x[i] == (float)(round % 1000 + boot->world - 1));
        atomic_store(&b->rounds[rank], round);
    }
    if (b->plain) free(x);
    if (err.code) {
        atomic_store(&b->failed_ns, tern__now_ns());
        atomic_fetch_add(&b->failures, 1);
        char who[32];
        snprintf(who, sizeof(who), "rank %d (", b->actor);
        if (!strstr(err.text, who)) fprintf(stderr, "rank %d: %s\n", rank, err.text);
        RANK_CHECK(rank, strstr(err.text, who));
    }
    tern_group_close(group);
    return -err.code;
}

static void start_loop(board *b, ranks *r, int world)
{
    *r = ranks_start(world, loop_body, b);
    for (int rank = 0; rank < world; rank++) assert_true(await_count(&b->rounds[rank], 5));
}

static void kill_in_loop(int world, int actor, size_t floats, bool plain)
{
    board *b = board_new();
    ranks r;
    b->actor = actor;
    b->floats = floats;
    b->plain = plain;
    start_loop(b, &r, world);
    int64_t killed_ns = tern__now_ns();
    kill(r.pids[actor], SIGKILL);
    ranks_wait(&r);
    for (int rank = 0; rank < world; rank++)
        assert_int_equal(r.status[rank], rank == actor ? 128 + SIGKILL : -TERN_E_PEER);
    assert_true(atomic_load(&b->failed_ns) - killed_ns < RANKS_SOON_S * INT64_C(1000000000));
    board_free(b);
}

static void test_killed_rank_is_named_within_a_second(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        kill_in_loop(3, round % 3, 1 << 18, false);
        kill_in_loop(3, (round + 1) % 3, 1 << 15, true);
        kill_in_loop(3, (round + 2) % 3, 1 << 19, true);
        kill_in_loop(2, round % 2, 1, false);
    }
}

static void test_stopped_and_continued_rank(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r;
    b->floats = 1 << 14;
    start_loop(b, &r, 3);
    for (int i = 0; i < 3; i++) {
        int before = atomic_load(&b->rounds[i]);
        kill(r.pids[i], SIGSTOP);
        usleep(100000); /* long enough for the others to fall asleep */
        kill(r.pids[i], SIGCONT);
        assert_true(await_count(&b->rounds[i], before + 5));
    }
    atomic_store(&b->phase, ENDS);
    ranks_wait(&r);
    assert_ranks_ok(r);
    board_free(b);
}

static void check_stopped_rank(size_t floats, bool plain)
{
    board *b = board_new();
    ranks r;
    int status;
    b->floats = floats;
    b->plain = plain;
    b->actor = 1;
    start_loop(b, &r, 3);
    atomic_store(&b->phase, STOPS);
    assert_int_equal(waitpid(r.pids[1], &status, WUNTRACED), r.pids[1]);
    int64_t stopped_ns = tern__now_ns();
    atomic_store(&b->phase, STOPPED);
    assert_true(await_count(&b->failures, 2));
    double seconds = (double)(atomic_load(&b->failed_ns) - stopped_ns) * 1e-9;
    kill(r.pids[1], SIGCONT);
    ranks_wait(&r);
    assert_true(seconds > 0.25 && seconds < RANKS_SOON_S);
    assert_int_equal(r.status[0], -TERN_E_TIMEOUT);
    assert_int_equal(r.status[2], -TERN_E_TIMEOUT);
    assert_int_not_equal(r.status[1], 0);
    board_free(b);
}

static void test_stopped_rank_is_named_after_the_timeout(void **state)
{
    (void)state;
    check_stopped_rank(1 << 14, false);
    check_stopped_rank(1 << 19, true);
}

static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern_group *group = open_group(boot, &err);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 2) {
        RANK_CHECK(rank, await_count(&b->phase, 2)); /* busy elsewhere */
        tern_group_close(group);
        return 0;
    }
    tern_work *work = tern_barrier_post(group, &err);
    atomic_fetch_add(&b->rounds[0], 1);
    RANK_CHECK(rank, await_count(&b->rounds[0], 2));
    group->opts.timeout_s = 0.9; /* set once both ranks have called it */
    RANK_CHECK(rank, tern_work_wait(work, &err) == TERN_E_TIMEOUT);
    RANK_CHECK(rank, strstr(err.text, "waited 0.9 s in barrier (work 2); not called by rank 2 (") &&
                         strstr(err.text, "whose last in this group was all_reduce of 1 f32, sum (work 1)"));
    atomic_fetch_add(&b->phase, 1);
    tern_group_close(group);
    return 0;
}

static void test_timeout_says_what_the_late_rank_did_last(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, late_body, b));
    board_free(b);
}

/* Rank 2 has posted the work and does not come back to it. */
static int owing_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float out[2];
    tern_group *group = open_group(boot, &err);
    float *in = tern_group_mem_alloc(group, 6 * sizeof(*in), &err);
    tern_work *work = tern_reduce_scatter_post(group, in, out, 2, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->rounds[0], 1);
    RANK_CHECK(rank, await_count(&b->rounds[0], 3));
    if (rank != 2) tern_work_test(work, &err); /* does its part */
    atomic_fetch_add(&b->rounds[1], 1);
    RANK_CHECK(rank, await_count(&b->rounds[1], 3));
    group->opts.timeout_s = 0.9;
    if (rank == 2) RANK_CHECK(rank, await_count(&b->phase, 2));
    RANK_CHECK(rank, tern_work_wait(work, &err) == TERN_E_TIMEOUT);
    RANK_CHECK(rank, strstr(err.text, "waited 0.9 s in reduce_scatter of 6 f32, sum (work 1); rank 2 (") &&
                         strstr(err.text, "has not come back to do its part"));
    atomic_fetch_add(&b->phase, 1);
    tern_group_close(group);
    return 0;
}

static void test_timeout_names_who_owes_its_part(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, owing_body, b));
    board_free(b);
}

/* Rank 2 is stopped: before it does its part of a work, or before it sends. */
static int stopping_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    static const char *const told[] = {
        ", which is stopped (by SIGSTOP or a debugger), has not come back to do ",
        ", which is stopped (by SIGSTOP or a debugger), which has sent it "};
    tern_error err = {0};
    float out[2];
    tern_group *group = open_group(boot, &err);
    float *in = tern_group_mem_alloc(group, 6 * sizeof(*in), &err);
    tern_work *work =
        b->variant ? NULL : tern_reduce_scatter_post(group, in, out, 2, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->rounds[0], 1);
    if (rank == 2) raise(SIGSTOP);
    RANK_CHECK(rank, await_count(&b->phase, 1) && await_count(&b->rounds[0], 3));
    group->opts.timeout_s = rank == 2 ? 20 : 0.9;
    if (b->variant && rank != 2)
        tern_recv(group, out, 2, TERN_F32, 2, 0, NULL, &err);
    else if (!b->variant)
        tern_work_wait(work, &err);
    atomic_fetch_add(&b->failures, rank != 2);
    RANK_CHECK(rank, rank == 2 || (err.code == TERN_E_TIMEOUT && strstr(err.text, told[b->variant])));
    tern_group_close(group);
    return 0;
}

static void test_timeout_says_that_a_rank_is_stopped(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        board *b = board_new();
        int status;
        b->variant = i;
        ranks r = ranks_start(3, stopping_body, b);
        assert_int_equal(waitpid(r.pids[2], &status, WUNTRACED), r.pids[2]);
        atomic_store(&b->phase, 1);
        bool have_failed = await_count(&b->failures, 2);
        assert_return_code(kill(r.pids[2], SIGCONT), errno);
        ranks_wait(&r);
        assert_true(have_failed);
        assert_ranks_ok(r);
        board_free(b);
    }
}

/* ---- forking ---- */

static int forked_child(int rank, tern_group *group)
{
    tern_error err = {0}, again = {0};
    float x = 1;
    RANK_CHECK(rank, tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err) == TERN_E_FORKED);
    RANK_CHECK(rank, !tern_all_reduce_post(group, &x, 1, TERN_F32, TERN_SUM, &again));
    RANK_CHECK(rank, again.code == TERN_E_FORKED);
    RANK_CHECK(rank, !tern_group_mem_alloc(group, 4, NULL));
    tern_group_abort(group, TERN_E_IO, "not this child's to say");
    tern_group_close(group);
    return 0;
}

static int fork_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    int status = -1;
    float x = 1;
    tern_group *group = open_group(boot, &err);
    float *window = tern_group_mem_alloc(group, 4, &err);
    tern_work *work = tern_all_reduce_post(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    pid_t child = fork();
    if (child == 0) _exit(forked_child(rank, group));
    RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
    tern_work_wait(work, &err);
    window[0] = x;
    tern_all_reduce(group, window, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, window[0] == 4);
    tern_group_close(group);
    return 0;
}

static void test_forked_child_is_refused_and_harmless(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, fork_body, b));
    board_free(b);
}

/* ---- a program that closes all descriptors ---- */

static double cpu_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage)) return INFINITY;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Reports an error, does not spin until the group is closed, and can be closed. */
static int closefrom_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const board *b = arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    bool closes = rank == 0 || b->variant;
    if (closes) closefrom(3);
    int64_t closed_ns = tern__now_ns();
    while (!err.code && tern__now_ns() - closed_ns < RANKS_SOON_S * INT64_C(1000000000))
        tern_barrier(group, &err);
    RANK_CHECK(rank,
               strstr(err.text, closes ? "the program has closed the group's descriptors" : "rank 0 ("));
    double before = cpu_seconds();
    if (closes) sleep(1);
    RANK_CHECK(rank, cpu_seconds() - before < 0.5);
    int64_t ended_ns = tern__now_ns();
    tern_group_close(group);
    RANK_CHECK(rank, tern__now_ns() - ended_ns < RANKS_SOON_S * INT64_C(1000000000));
    return 0;
}

static void test_descriptors_that_the_program_closed(void **state)
{
    (void)state;
    board *b = board_new();
    for (b->variant = 0; b->variant < 2; b->variant++) assert_ranks_ok(ranks_run(2, closefrom_body, b));
    board_free(b);
}

/* ---- on two hosts ---- */

/* Each rank notices it itself, or is told by the faster one. */
static int open_on_two_hosts(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern__bootstrap own = *boot;
    own.host_id = rank ? "attic" : "cellar";
    setenv("TERN_BACKEND", "native", 1);
    RANK_CHECK(rank, !open_group(&own, &err));
    RANK_CHECK(rank, err.code == TERN_E_UNSUPPORTED || err.code == TERN_E_PEER);
    RANK_CHECK(rank, strstr(err.text, "are on different hosts"));
    RANK_CHECK(rank, strstr(err.text, "/cellar, pid") && strstr(err.text, "/attic, pid"));
    return 0;
}

static void test_windows_do_not_reach_another_host(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, open_on_two_hosts, b));
    board_free(b);
}

/* ---- groups of one rank ---- */

/* So a program may compute its share of the data before it checks the error. */
static void test_no_group_is_one_rank(void **state)
{
    (void)state;
    assert_int_equal(tern_group_rank(NULL), 0);
    assert_int_equal(tern_group_size(NULL), 1);
    assert_int_equal(tern_group_local_rank(NULL), 0);
    assert_string_equal(tern_group_backend(NULL), "self");
}

static void test_alone(void **state)
{
    (void)state;
    tern_error err = {0};
    const tern__bootstrap boot = {.world = 1, .local_world = 1, .listen_fd = -1, .source = "alone"};
    tern_group *group = tern__group_open_boot(&boot, NULL, &err);
    assert_ok(err);
    assert_string_equal(tern_group_backend(group), "self");
    assert_int_equal(tern_group_size(group), 1);
    float x[2] = {3, 4}, y[2] = {0};
    float *window = tern_group_mem_alloc(group, 8, &err);
    assert_int_equal(tern_all_reduce(group, x, 2, TERN_F32, TERN_AVG, &err), TERN_OK);
    assert_int_equal(tern_all_gather(group, x, y, 2, TERN_F32, &err), TERN_OK);
    assert_int_equal(tern_broadcast(group, window, 2, TERN_F32, 0, &err), TERN_OK);
    assert_int_equal(tern_barrier(group, &err), TERN_OK);
    assert_true(x[0] == 3 && y[1] == 4 && window[0] == 0);
    tern_work *work = tern_all_reduce_post(group, x, 2, TERN_F32, TERN_SUM, &err);
    assert_int_equal(tern_work_test(work, &err), TERN_OK);
    assert_int_equal(tern_work_wait(work, &err), TERN_OK);
    assert_ok(err);
    tern_group_close(group);
}

static void *alloc_nothing(size_t bytes, size_t align, void *ctx)
{
    (void)bytes;
    (void)align;
    (void)ctx;
    return NULL;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    tern_error err = {0}, again = {0};
    float x = 1;
    const tern__bootstrap boot = {.world = 1, .local_world = 1, .listen_fd = -1, .source = "alone"};
    const tern_allocator empty = {.alloc = alloc_nothing};
    tern_group *group = tern__group_open_boot(&boot, NULL, &err);
    assert_ok(err);
    tern__allocator_replace(&empty);
    tern_work *work = tern_all_reduce_post(group, &x, 1, TERN_F32, TERN_SUM, &err);
    tern_group *other = tern__group_open_boot(&boot, NULL, &again);
    tern__allocator_replace(NULL);
    assert_null(work);
    assert_null(other);
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_int_equal(again.code, TERN_E_MEMORY);
    again = (tern_error){0};
    assert_int_equal(tern_barrier(group, &again), TERN_E_MEMORY); /* the first failure stays */
    tern_group_close(group);
}

/* In warm steps works are reused. A work may be waited for late, or not at all before the group is closed. */
static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    ledger books = {0};
    ledger_open(&books); /* for this rank, which is its own process */
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_work *late = NULL;
    int asked = 0;
    for (int step = 0; step < 20; step++) {
        float x[3] = {1, 1, 1};
        tern_work *works[3];
        for (int i = 0; i < 3; i++)
            works[i] = tern_all_reduce_post(group, &x[i], 1, TERN_F32, TERN_SUM, &err);
        for (int i = 2; i >= 0; i--) RANK_CHECK(rank, tern_work_wait(works[i], &err) == TERN_OK);
        if (step == 0) asked = atomic_load(&books.requests);
    }
    RANK_CHECK(rank, atomic_load(&books.requests) == asked);
    float y = 1;
    late = tern_all_reduce_post(group, &y, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK(rank, tern_barrier(group, &err) == TERN_OK);
    tern_group_close(group);
    RANK_CHECK(rank, tern_work_wait(late, &err) == TERN_OK && y == 2);
    RANK_CHECK_OK(rank, err);
    tern__allocator_replace(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 0;
}

static void test_warm_works_ask_for_no_memory(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, warm_body, NULL));
}

static void test_options_are_checked(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    const tern__bootstrap boot = {.world = 1, .local_world = 1, .listen_fd = -1, .source = "alone"};
    opts.timeout_s = NAN;
    assert_null(tern__group_open_boot(&boot, &opts, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_null(tern__group_open_boot(&boot, NULL, &err)); /* err is set already: does nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_group_is_one_rank),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_warm_works_ask_for_no_memory),
        cmocka_unit_test(test_mismatch_is_told_to_all),
        cmocka_unit_test(test_mismatch_of_roots_in_flight),
        cmocka_unit_test(windows_beyond_the_machine_are_refused),
        cmocka_unit_test(test_windows_of_different_sizes),
        cmocka_unit_test(test_own_mistake_ends_the_group),
        cmocka_unit_test(test_abort_names_rank_and_reason),
        cmocka_unit_test(test_rank_leaves_early),
        cmocka_unit_test(test_killed_rank_is_named_within_a_second),
        cmocka_unit_test(test_stopped_and_continued_rank),
        cmocka_unit_test(test_stopped_rank_is_named_after_the_timeout),
        cmocka_unit_test(test_timeout_says_what_the_late_rank_did_last),
        cmocka_unit_test(test_timeout_names_who_owes_its_part),
        cmocka_unit_test(test_timeout_says_that_a_rank_is_stopped),
        cmocka_unit_test(test_forked_child_is_refused_and_harmless),
        cmocka_unit_test(test_descriptors_that_the_program_closed),
        cmocka_unit_test(test_windows_do_not_reach_another_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
