/* test_late.c - a rank that does not come. Whatever the others wait in, their timeout's error names it and
 * its last activity. Before that a warning names a rank that is stopped or has not come to the meeting. */
#include "comm/control_fixture.h"

#include "base/plugin.h"
#include "comm/meet/shm.h"
#include "comm/move/backend.h"

#include <tern/backend/transport.h>
#include <tern/p2p.h>

#include <sys/syscall.h>

enum { CALL_BARRIER, CALL_WAIT, CALL_MEMORY, CALL_SPLIT, CALL_NEW, CALL_CHANNEL, CALLS };

static tern_group *open_group(const tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = timeout_s;
    return tern__group_open_boot(boot, &opts, err);
}

static void call(int which, tern_group *group, tern_error *err)
{
    static float x[10];
    static const int both[] = {0, 1};
    switch (which) {
    case CALL_BARRIER: tern_barrier(group, err); break;
    case CALL_WAIT: tern_work_wait(tern_all_reduce_post(group, x, 10, TERN_F32, TERN_MAX, err), err); break;
    case CALL_MEMORY: tern_group_mem_alloc(group, 4096, err); break;
    case CALL_SPLIT: tern_group_split(group, 0, 0, NULL, err); break;
    case CALL_NEW: tern_group_new(group, both, 2, NULL, err); break;
    default:
        if (!group->backend->channel_open(group->state, &(tern__channel_opts){.slots = 4}, err))
            tern__group_fail(group, err);
    }
}

static int wait_for_the_late(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern_group *group = open_group(boot, 20, &err);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    group->opts.timeout_s = 0.3; /* set once all ranks have come */
    if (rank != b->victim) call(b->mode, group, &err);
    b->reports[rank].code = err.code;
    snprintf(b->reports[rank].text, sizeof(err.text), "%s", err.text);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    tern_group_close(group);
    return 0;
}

static void check_reports(const board *b, const char *expected)
{
    char who[32];
    int in_time = 0;
    snprintf(who, sizeof(who), "rank %d (", b->victim);
    for (int rank = 0; rank < 3; rank++) {
        const report *seen = &b->reports[rank];
        if (rank == b->victim) continue;
        in_time += seen->code == TERN_E_TIMEOUT;
        assert_true(seen->code == TERN_E_TIMEOUT ||
                    seen->code == TERN_E_PEER); /* noticed, or told by a peer */
        if (!strstr(seen->text, "waited 0.") || !strstr(seen->text, who) || !strstr(seen->text, expected))
            fail_msg("call %d, rank %d: \"%s\" does not name rank %d and \"%s\"", b->mode, rank, seen->text,
                     b->victim, expected);
    }
    assert_true(in_time >= 1);
}

/* Each of three ranks is late once, in worlds that wait beside each other. */
static void check_victims(int mode, ranks_body body, const char *expected)
{
    board *boards[3];
    ranks started[3];
    for (int victim = 0; victim < 3; victim++) {
        boards[victim] = board_new();
        boards[victim]->mode = mode;
        boards[victim]->victim = victim;
        started[victim] = ranks_start(3, body, boards[victim]);
    }
    for (int victim = 0; victim < 3; victim++) {
        ranks_wait(&started[victim]);
        assert_ranks_ok(started[victim]);
        check_reports(boards[victim], expected);
        board_free(boards[victim]);
    }
}

static void every_call_names_who_is_late_and_what_it_did_last(void **state)
{
    (void)state;
    for (int which = 0; which < CALLS; which++)
        check_victims(which, wait_for_the_late, "was all_reduce of 1 f32, sum (work 1)");
}

/* The rank meets the others, and then does not open the group's memory. */
static int stop_at_the_door(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *group = NULL;
    seat s = {0};
    tern__bootstrap own = *boot;
    own.choice = tern__comm_choose(NULL, false); /* the same as the others' */
    if (rank == b->victim)
        s = sit_down(&own, 10, &err);
    else
        group = open_group(boot, 0.9, &err); /* the other ranks are never that late */
    b->reports[rank].code = err.code;
    snprintf(b->reports[rank].text, sizeof(err.text), "%s", err.text);
    RANK_CHECK(rank, !group && all_are_here(b, boot->world));
    get_up(&s);
    return 0;
}

static void so_does_the_opening(void **state)
{
    (void)state;
    check_victims(0, stop_at_the_door, ", which has called no collective yet");
}

/* ---- warnings ---- */

static void keep_warning(tern_log_level level, const char *text, void *arg)
{
    board *b = arg;
    if (level != TERN_LOG_WARN) return;
    int n = atomic_fetch_add(&b->events, 1);
    if (n < RANKS_MAX) snprintf(b->reports[n].text, sizeof(b->reports[n].text), "%s", text);
}

enum { BARRIER, MESSAGE, MESSAGE_IN_PARTS, WAITS };

static void receive_in_parts(tern_group *group, float *x, int from, tern_error *err)
{
    tern_work *work = tern_irecv(group, x, 1, TERN_F32, from, 7, err);
    while (work && tern_work_wait_for(work, 0.1, err) == TERN_PENDING) {
    }
    if (work) tern_work_wait(work, err);
}

/* The warning comes after half of the group's time-out. A rank whose wait has begun shortens that time: it is
 * warned soon, and the wait itself still ends only when all have come, on a busy machine, too. */
typedef struct soon {
    tern__progress_hook hook;
    tern_group *group;
    bool is_set;
} soon;

static int soon_progress(tern__progress_hook *hook, tern_error *err)
{
    soon *s = (soon *)hook;
    tern_group *group = s->group;
    (void)err;
    if (!group->stop_look_at) return TERN_OK; /* the wait is not late yet */
    group->opts.timeout_s = 2;
    if (s->is_set) return TERN_OK;
    group->stop_look_at = tern__deadline(0.5);
    group->stop_warn_at = tern__deadline(1);
    s->is_set = true;
    return TERN_OK;
}

/* The victim stops and is continued after the warning: the calls succeed. */
static int stop_for_a_while(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern__bootstrap own = host_of(boot);
    tern_log_set(keep_warning, b);
    tern_group *group = open_group(&own, RANKS_TIMEOUT_S, &err);
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    soon s = {.hook = {.progress = soon_progress}, .group = group};
    if (rank == b->victim)
        raise(SIGSTOP);
    else
        tern__progress_hook_add(&group->hooks, &s.hook);
    if (b->mode == BARRIER)
        tern_barrier(group, &err);
    else if (rank == b->victim)
        tern_send(group, &x, 1, TERN_F32, (rank + 1) % 3, 7, &err);
    else if (rank == (b->victim + 1) % 3 && b->mode == MESSAGE)
        tern_recv(group, &x, 1, TERN_F32, b->victim, 7, NULL, &err);
    else if (rank == (b->victim + 1) % 3)
        receive_in_parts(group, &x, b->victim, &err);
    RANK_CHECK_OK(rank, err);
    tern__progress_hook_remove(&group->hooks, &s.hook);
    group->opts.timeout_s = RANKS_TIMEOUT_S;
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(group);
    return 0;
}

/* Returns how many warnings each host of `world` ranks gives: its first rank that waits warns. */
static int expected_warnings(int mode, int victim, int world)
{
    int count = 0;
    for (int host = 0; host < hosts; host++) {
        bool waits = false;
        for (int rank = host; rank < world; rank += hosts) waits |= rank != victim;
        count += waits;
    }
    return mode ? 1 : count;
}

static void assert_stopped_is_named(const board *b, const char *text)
{
    char who[32];
    snprintf(who, sizeof(who), "rank %d (", b->victim);
    if (strncmp(text, who, strlen(who)) || !strstr(text, b->mode ? "recv of 1 f32" : "barrier (work 2)") ||
        !strstr(text, " is stopped (by SIGSTOP") || !strstr(text, " while rank "))
        fail_msg("\"%s\" does not name rank %d", text, b->victim);
}

static void check_warnings(const board *b, int expected)
{
    for (int i = expected; i < atomic_load(&b->events); i++)
        fail_msg("a warning too many: \"%s\"", b->reports[i].text);
    assert_int_equal(atomic_load(&b->events), expected);
    for (int i = 0; i < expected; i++) assert_stopped_is_named(b, b->reports[i].text);
}

/* Each of three ranks stops once, in worlds that wait beside each other. */
static void check_stopped(int mode)
{
    enum { world = 3 };
    board *boards[world];
    ranks started[world];
    for (int victim = 0; victim < world; victim++) {
        boards[victim] = board_new();
        boards[victim]->mode = mode;
        boards[victim]->victim = victim;
        started[victim] = ranks_start(world, stop_for_a_while, boards[victim]);
    }
    for (int victim = 0; victim < world; victim++) {
        int status;
        pid_t pid = started[victim].pids[victim];
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    }
    for (int victim = 0; victim < world; victim++)
        assert_true(await_count(&boards[victim]->events, expected_warnings(mode, victim, world)));
    usleep(100000); /* for others that might warn, too */
    for (int victim = 0; victim < world; victim++)
        assert_return_code(kill(started[victim].pids[victim], SIGCONT), errno);
    for (int victim = 0; victim < world; victim++) {
        ranks_wait(&started[victim]);
        assert_ranks_ok(started[victim]);
        check_warnings(boards[victim], expected_warnings(mode, victim, world));
        board_free(boards[victim]);
    }
}

/* On each host that waits, once. */
static void a_stopped_rank_is_named_once_in_a_warning(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    if (hosts > 1) skip_test("ThreadSanitizer sees nothing of what libgloo locks");
#endif
    if (hosts > 1) need_part("gloo");
    assert_int_equal(choose_plugins(), 0);
    for (int mode = 0; mode < WAITS; mode++) check_stopped(mode);
}

/* ---- the shared memory ---- */

static const board *late_board; /* of the rank that is late; NULL from then on */

/* The C library's. A rank that has met the others begins with it to open the group's memory. */
int memfd_create(const char *name, unsigned flags)
{
    const board *b = late_board;
    late_board = NULL;
    if (b && b->mode) raise(SIGSTOP);
    if (b && !b->mode) usleep(300000);
    return (int)syscall(SYS_memfd_create, name, flags);
}

static int open_late(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    float x = 1;
    tern_log_set(keep_warning, b);
    if (rank == 0) late_board = b;
    tern_group *group = open_group(boot, 2, &err); /* the warning comes after half of it */
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x == 3);
    tern_group_close(group);
    return 0;
}

/* The others wait for the memory in which ranks write what they wait in. */
static void ranks_wait_for_the_shared_memory_itself(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        board *b = board_new();
        int status;
        b->mode = mode;
        ranks r = ranks_start(3, open_late, b);
        if (mode) {
            assert_int_equal(waitpid(r.pids[0], &status, WUNTRACED), r.pids[0]);
            assert_true(await_count(&b->events, 1)); /* whoever finds it first claims it */
            assert_return_code(kill(r.pids[0], SIGCONT), errno);
        }
        ranks_wait(&r);
        assert_ranks_ok(r);
        for (int i = 0; i < atomic_load(&b->events); i++)
            if (!mode || strncmp(b->reports[i].text, "rank 0 (", 8) != 0)
                fail_msg("mode %d: \"%s\"", mode, b->reports[i].text);
        board_free(b);
    }
}

/* The ranks of the set b->mode come after the warning. */
static int come_late(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    tern__bootstrap own = *boot;
    own.is_placed = b->victim; /* by a launcher, on one host */
    own.local_world = own.world;
    tern_log_set(keep_warning, b);
    opts.connect_timeout_s = 3; /* the warning comes after half of it */
    if (b->mode >> rank & 1) await_count(&b->events, 1);
    tern_group *group = tern__group_open_boot(&own, &opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(group);
    return 0;
}

/* Writes "rank 1" or "ranks 1, 2" for the ranks of the set. */
static void name_ranks(int set, char *text, size_t size)
{
    bool is_one = !(set & (set - 1));
    snprintf(text, size, is_one ? "rank" : "ranks");
    for (int rank = 0, count = 0; set >> rank; rank++)
        if (set >> rank & 1)
            snprintf(text + strlen(text), size - strlen(text), "%s %d", count++ ? "," : "", rank);
}

static void check_named(const board *b)
{
    char names[64], expected[128], first[64] = "";
    int others = b->mode & ~1;
    const char *text = b->reports[0].text;
    assert_int_equal(atomic_load(&b->events), 1);
    name_ranks(others, names, sizeof(names));
    if (!(b->mode & 1))
        snprintf(expected, sizeof(expected), "missing: %s", names);
    else if (others)
        snprintf(expected, sizeof(expected), "; %s %s not come%s either", names,
                 others & (others - 1) ? "have" : "has", b->victim ? "" : " to this host");
    else
        snprintf(expected, sizeof(expected), "has it not come, or is it stopped?");
    if (b->mode & 1) snprintf(first, sizeof(first), " for rank 0, which does not answer");
    if (!strstr(text, expected) || !strstr(text, first))
        fail_msg("\"%s\" does not have \"%s\"", text, expected);
}

/* The worlds wait beside each other. */
static void ranks_that_have_not_come_are_named_once_in_a_warning(void **state)
{
    (void)state;
    enum { world = 4, cases = 8 };
    static const int sets[cases] = {0x1, 0x2, 0x8, 0xa, 0x3, 0x5, 0x7, 0xd}; /* of ranks, by bits */
    board *boards[cases];
    ranks started[cases];
    for (int i = 0; i < cases; i++) {
        boards[i] = board_new();
        boards[i]->mode = sets[i];
        boards[i]->victim = i % 2;
        started[i] = ranks_start(world, come_late, boards[i]);
    }
    for (int i = 0; i < cases; i++) {
        ranks_wait(&started[i]);
        assert_ranks_ok(started[i]);
        check_named(boards[i]);
        board_free(boards[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_names_who_is_late_and_what_it_did_last),
        cmocka_unit_test(so_does_the_opening),
        EVERYWHERE(a_stopped_rank_is_named_once_in_a_warning),
        cmocka_unit_test_setup(ranks_wait_for_the_shared_memory_itself, one_host),
        cmocka_unit_test(ranks_that_have_not_come_are_named_once_in_a_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
