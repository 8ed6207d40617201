/* test_p2p_faults.c - messages whose ranks die, stop or leave: every rank gets the reason in time. */
#include "meeting.h"
#include "message.h"

#include "comm/move/window/window.h"

#include <tern.h>

#include <stdatomic.h>
#include <sys/mman.h>

enum { long_bytes = 2 << 20 };

/* Shared by the test and its ranks. */
typedef struct board {
    _Atomic(int64_t) failed[RANKS_MAX]; /* when each rank got its error */
    atomic_int rounds;
    int actor, variant;
    size_t bytes;
    double timeout_s;
} board;

static void board_free(board *b)
{
    munmap(b, sizeof(*b));
}

/* ---- ranks that die or stop ---- */

/* Every rank sends and receives around a ring, forever. Returns the error's code. */
static int loop_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = b->timeout_s;
    char actor[16], *in = calloc(1, b->bytes), *out = calloc(1, b->bytes);
    snprintf(actor, sizeof(actor), "rank %d (", b->actor);
    tern_group *group = tern__group_open_boot(boot, &opts, &err);
    RANK_CHECK_OK(rank, err);
    int next = (rank + 1) % boot->world, last = (rank + boot->world - 1) % boot->world;
    while (!err.code) {
        tern_work *work = tern_isend(group, out, b->bytes, TERN_U8, next, 0, &err);
        tern_recv(group, in, b->bytes, TERN_U8, b->variant ? TERN_ANY_SOURCE : last, 0, NULL, &err);
        if (work) tern_work_wait(work, &err);
        atomic_fetch_add(&b->rounds, 1);
    }
    atomic_store(&b->failed[rank], tern__now_ns());
    if (rank != b->actor && !strstr(err.text, actor)) fprintf(stderr, "rank %d: %s\n", rank, err.text);
    RANK_CHECK(rank, rank == b->actor || strstr(err.text, actor));
    RANK_CHECK(rank, rank == b->actor || err.code != TERN_E_TIMEOUT ||
                         (strstr(err.text, "waited 1 s in ") && strstr(err.text, "u8 ") &&
                          strstr(err.text, ", tag 0; ")));
    tern_group_close(group);
    free(in);
    free(out);
    return -err.code;
}

/* Starts the ring and lets it run for a random time. */
static ranks loop_start(board *b, int world, uint64_t *state)
{
    ranks r = ranks_start(world, loop_body, b);
    int rounds = 2 * world + (int)below(state, b->bytes >= long_bytes ? 20 : 3000);
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    while (atomic_load(&b->rounds) < rounds && tern__now_ns() < deadline) usleep(50);
    assert_true(atomic_load(&b->rounds) >= rounds);
    usleep((useconds_t)below(state, 1000));
    return r;
}

static void kill_one(int world, int actor, size_t bytes, uint64_t *state)
{
    board *b = share_memory(sizeof(board));
    b->actor = actor;
    b->bytes = bytes;
    b->variant = (int)below(state, 2);
    b->timeout_s = 10;
    ranks r = loop_start(b, world, state);
    int64_t killed = tern__now_ns();
    kill(r.pids[actor], SIGKILL);
    ranks_wait(&r);
    for (int rank = 0; rank < world; rank++) {
        assert_int_equal(r.status[rank], rank == actor ? 128 + SIGKILL : -TERN_E_PEER);
        assert_true(rank == actor || b->failed[rank] - killed < RANKS_SOON_S * INT64_C(1000000000));
    }
    board_free(b);
}

static void test_killed_ranks_are_named(void **state)
{
    static const size_t sizes[] = {1, 8192, 100000, long_bytes, 16 << 20};
    uint64_t random = 7;
    (void)state;
    for (int i = 0; i < 15; i++) kill_one(2 + i % 3, i % 2, sizes[i % 5], &random);
}

static void test_stopped_ranks_are_named_after_the_timeout(void **state)
{
    uint64_t random = 3;
    (void)state;
    for (int i = 0; i < 2; i++) {
        board *b = share_memory(sizeof(board));
        b->actor = 1;
        b->bytes = i == 0 ? 8 : long_bytes;
        b->variant = i;
        b->timeout_s = 1;
        ranks r = loop_start(b, 2, &random);
        int64_t stopped = tern__now_ns();
        kill(r.pids[1], SIGSTOP);
        while (!atomic_load(&b->failed[0]) && tern__now_ns() - stopped < 10000000000) usleep(1000);
        kill(r.pids[1], SIGCONT);
        ranks_wait(&r);
        double seconds = (double)(b->failed[0] - stopped) * 1e-9;
        assert_true(seconds > 0.9 && seconds < RANKS_SOON_S);
        assert_int_equal(r.status[0], -TERN_E_TIMEOUT);
        assert_int_not_equal(r.status[1], 0);
        board_free(b);
    }
}

/* The late rank's last activity: its last message, and the call it waits in or its last collective. */
static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    f.group->opts.timeout_s = 20;
    tern_barrier(f.group, &f.err);
    if (rank == 1) tern_send(f.group, f.plain, 3, TERN_F64, 0, 5, &f.err);
    if (rank == 0) tern_recv(f.group, f.plain, 3, TERN_F64, 1, 5, NULL, &f.err);
    RANK_CHECK_OK(rank, f.err);
    if (rank == 0) f.group->opts.timeout_s = 0.2; /* rank 1 makes all its calls in time */
    if (rank == 0)
        tern_recv(f.group, f.plain, 4, TERN_F32, b->variant ? TERN_ANY_SOURCE : 1, 6, NULL, &f.err);
    atomic_fetch_add(&b->rounds, rank == 0);
    while (rank == 1 && !atomic_load(&b->rounds)) usleep(1000); /* rank 1 computes */
    if (rank == 1) tern_barrier(f.group, &f.err);
    RANK_CHECK(rank, f.err.code == (rank ? TERN_E_PEER : TERN_E_TIMEOUT) || f.err.code == TERN_E_TIMEOUT);
    const char *own = b->variant
                          ? "rank 0 waited 0.2 s in recv of 4 f32 from any rank, tag 6; not sent by rank 1 ("
                          : "rank 0 waited 0.2 s in recv of 4 f32 from rank 1, tag 6; not sent by rank 1 (";
    RANK_CHECK(rank, strstr(f.err.text, own));
    RANK_CHECK(rank,
               strstr(f.err.text, "), whose last message to it was 3 f64 from rank 1, tag 5, and whose last "
                                  "collective was barrier (work 1)"));
    return fixture_close(&f);
}

static void test_timeouts_say_what_the_late_rank_did_last(void **state)
{
    (void)state;
    for (int any = 0; any < 2; any++) {
        board *b = share_memory(sizeof(board));
        b->variant = any;
        assert_ranks_ok(ranks_run(2, late_body, b));
        board_free(b);
    }
}

/* ---- ranks that leave ---- */

enum { WAITS_IN_RECV, WAITS_IN_ANY, WAITS_IN_SEND, SENDS_LATER, LEAVES };

/* The last rank closes its group. Ranks that wait for it, or send to it later, get an error, in the world
 * and in a group made from it. */
static int leave_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    fixture f;
    bool in_group = b->actor != 0;
    if (open_together(&f, rank, boot, long_bytes)) return 1;
    tern_group *pair = in_group ? tern_group_split(f.group, 0, 0, NULL, &f.err) : f.group;
    int last = f.world - 1;
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, all_meet(f.world, 2));
    if (rank == last) {
        tern_send(pair, f.plain, 1, TERN_U8, 0, 1, &f.err); /* which is another group */
        if (in_group) tern_group_close(pair);
        while (in_group && !atomic_load(&b->rounds)) usleep(1000);
        return f.err.code ? 1 : fixture_close(&f);
    }
    while (b->variant == SENDS_LATER && !tern__shm_has_left(tern__windows_ranks(pair->state), last))
        usleep(100);
    if (rank == 0 && b->variant == WAITS_IN_RECV)
        tern_recv(pair, f.plain, 4, TERN_F32, last, 0, NULL, &f.err);
    if (rank == 0 && b->variant == WAITS_IN_ANY)
        tern_recv(pair, f.plain, 4, TERN_F32, TERN_ANY_SOURCE, 0, NULL, &f.err);
    if (rank == 0 && b->variant == WAITS_IN_SEND)
        tern_send(pair, f.plain, long_bytes, TERN_U8, last, 0, &f.err);
    if (rank == 0 && b->variant == SENDS_LATER) tern_send(pair, f.plain, 4, TERN_U8, last, 0, &f.err);
    if (rank != 0 && b->variant == WAITS_IN_ANY) {
        if (in_group) tern_group_close(pair);
        while (!atomic_load(&b->rounds) && in_group) usleep(1000);
        return fixture_close(&f);
    }
    if (rank != 0) tern_barrier(pair, &f.err);
    atomic_fetch_add(&b->rounds, 1);
    bool is_told = f.err.code == TERN_E_PEER && strstr(f.err.text, "has closed its group");
    if (!is_told) fprintf(stderr, "%d: %d: %s\n", b->variant, f.err.code, f.err.text);
    RANK_CHECK(rank, is_told);
    if (b->variant == WAITS_IN_ANY) RANK_CHECK(rank, strstr(f.err.text, "every other rank"));
    if (in_group) tern_group_close(pair);
    return fixture_close(&f);
}

static void test_ranks_that_leave(void **state)
{
    (void)state;
    for (int variant = 0; variant < LEAVES; variant++)
        for (int in_group = 0; in_group < 2; in_group++) {
            board *b = share_memory(sizeof(board));
            b->variant = variant;
            b->actor = in_group;
            assert_ranks_ok(meeting_run(2, leave_body, b));
            assert_ranks_ok(meeting_run_threads(3, leave_body, b));
            board_free(b);
        }
}

/* A group is closed with pending messages: its works fail, and the peer's error names them. */
static int unfinished_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const int *receives = arg;
    fixture f;
    if (open_together(&f, rank, boot, long_bytes)) return 1;
    if (rank == 1) {
        tern_recv(f.group, f.plain, 4, TERN_F32, TERN_ANY_SOURCE, 9, NULL, &f.err);
        RANK_CHECK(rank, f.err.code == TERN_E_PEER);
        RANK_CHECK(rank,
                   strstr(f.err.text, *receives ? "rank 0 has closed its group before its recv of 2 i64 from "
                                                  "rank 1, tag 4 was done"
                                                : "rank 0 has closed its group before its send of 2097152 u8 "
                                                  "to rank 1, tag 4 was done"));
        return fixture_close(&f);
    }
    tern_work *works[2];
    for (int i = 0; i < 2; i++)
        works[i] = *receives ? tern_irecv(f.group, f.plain, 2, TERN_I64, 1, 4 + i, &f.err)
                             : tern_isend(f.group, f.plain, long_bytes, TERN_U8, 1, 4 + i, &f.err);
    RANK_CHECK_OK(rank, f.err);
    tern_group_close(f.group);
    f.group = NULL;
    RANK_CHECK(rank, tern_work_test(works[0], &f.err) == TERN_E_STATE);
    RANK_CHECK(rank, strstr(f.err.text, "the work was not done when its group was closed"));
    for (int i = 0; i < 2; i++) RANK_CHECK(rank, tern_work_wait(works[i], NULL) == TERN_E_STATE);
    return fixture_close(&f);
}

static void test_unfinished_works_of_a_closed_group(void **state)
{
    (void)state;
    for (int receives = 0; receives < 2; receives++) {
        assert_ranks_ok(meeting_run(2, unfinished_body, &receives));
        assert_ranks_ok(meeting_run_threads(2, unfinished_body, &receives));
    }
}

/* ---- forking ---- */

static int forked_child(int rank, tern_group *group, tern_work *work)
{
    tern_error err = {0}, again = {0};
    float x = 1;
    RANK_CHECK(rank, tern_send(group, &x, 1, TERN_F32, 1 - rank, 0, &err) == TERN_E_FORKED);
    RANK_CHECK(rank, !tern_irecv(group, &x, 1, TERN_F32, 1 - rank, 0, &again));
    RANK_CHECK(rank, again.code == TERN_E_FORKED && tern_work_wait(work, NULL) == TERN_E_FORKED);
    tern_group_close(group);
    return 0;
}

static int fork_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    int status = -1;
    if (fixture_open(&f, rank, boot, long_bytes)) return 1;
    memset(f.plain, rank + 1, long_bytes);
    tern_work *works[] = {tern_isend(f.group, f.plain, long_bytes, TERN_U8, 1 - rank, 1, &f.err),
                          tern_irecv(f.group, f.expected, long_bytes, TERN_U8, 1 - rank, 1, &f.err)};
    RANK_CHECK_OK(rank, f.err);
    pid_t child = fork();
    if (child == 0) _exit(forked_child(rank, f.group, works[rank]));
    RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 2; i++) tern_work_wait(works[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, f.expected[0] == 2 - rank && f.expected[long_bytes - 1] == 2 - rank);
    return fixture_close(&f);
}

static void test_forked_children_are_refused_and_harmless(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, fork_body, NULL));
}

/* ---- failures elsewhere ---- */

/* A failure elsewhere ends pending works. A work that is waited for afterwards is freed. */
static int failed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, long_bytes)) return 1;
    tern_work *works[] = {tern_irecv(f.group, f.plain, 4, TERN_F32, 1 - rank, 0, &f.err),
                          tern_isend(f.group, f.plain, long_bytes, TERN_U8, 1 - rank, 1, &f.err)};
    RANK_CHECK_OK(rank, f.err);
    tern_barrier(f.group, NULL); /* rank 1 may be told of the failure here already */
    if (rank == 0) tern_group_abort(f.group, TERN_E_IO, "the disk is full");
    for (int i = 0; i < 2; i++) {
        tern_error err = {0};
        int status = tern_work_wait(works[i], &err);
        RANK_CHECK(rank, status == err.code && status == (rank ? TERN_E_PEER : TERN_E_IO));
        RANK_CHECK(rank, strstr(err.text, "the disk is full"));
    }
    return fixture_close(&f);
}

static void test_works_of_a_failed_group(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, failed_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, failed_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_ranks_are_named),
        cmocka_unit_test(test_stopped_ranks_are_named_after_the_timeout),
        cmocka_unit_test(test_timeouts_say_what_the_late_rank_did_last),
        cmocka_unit_test(test_ranks_that_leave),
        cmocka_unit_test(test_unfinished_works_of_a_closed_group),
        cmocka_unit_test(test_forked_children_are_refused_and_harmless),
        cmocka_unit_test(test_works_of_a_failed_group),
    };
    return cmocka_run_group_tests(tests, meeting_setup, NULL);
}
