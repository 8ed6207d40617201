/* test_control.c - ranks meet, pass descriptors, abort, leave and die. Killed ranks are real processes, and
 * the time until the others notice is measured from the kill. */
#include "comm/control_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- meeting and leaving ---- */

static int meet_and_leave(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    char address[64];
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern__control_hosts(s.control) == TERN__MIN(hosts, boot->world));
    for (int peer = 0; peer < boot->world; peer++) {
        RANK_CHECK(rank, tern__control_host(s.control, peer) == peer % hosts);
        RANK_CHECK(rank, tern__control_is_same_host(s.control, peer) == (peer % hosts == rank % hosts));
    }
    tern__control_address(s.control, address, sizeof(address));
    RANK_CHECK(rank, !strcmp(address, "127.0.0.1"));
    RANK_CHECK(rank, tern__control_is_healthy(s.control));
    RANK_CHECK(rank, tern__control_check(s.control, "x", &err) == TERN_OK);
    get_up(&s);
    return 0;
}

static void ranks_meet(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) {
        assert_ranks_ok(ranks_run(worlds[i], meet_and_leave, NULL));
        assert_ranks_ok(ranks_run_threads(worlds[i], meet_and_leave, NULL));
    }
}

static int find_no_partner(const seat *s, int rank, int gone)
{
    tern_error err = {0};
    int fd = -1;
    RANK_CHECK(rank, tern__control_recv_fd(s->control, gone, 1, 10, &fd, &err) == TERN_E_PEER);
    RANK_CHECK(rank, strstr(err.text, "has closed its group"));
    err = (tern_error){0};
    int64_t deadline = tern__deadline(10); /* it closes its end some time after its goodbye */
    while (!tern__control_send_fd(s->control, gone, 1, 0, &err) && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__deadline(0.001));
    RANK_CHECK(rank, err.code == TERN_E_PEER && strstr(err.text, "has closed its group"));
    RANK_CHECK(rank, !strcmp(err.func, "tern_group")); /* tern_ddp_new passes descriptors as well */
    return 0;
}

/* The victim leaves and its process ends. The others see the goodbye and no failure. */
static int leave_first(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == b->victim) {
        get_up(&s);
        return 0;
    }
    int64_t deadline = tern__deadline(10);
    while (!tern__control_has_left(s.control, b->victim) && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__deadline(0.001));
    RANK_CHECK(rank, tern__control_has_left(s.control, b->victim));
    int pid = s.control->peers[b->victim].info.pid;
    while (pid != getpid() && !kill(pid, 0) && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__deadline(0.001));
    tern__poll(NULL, 0, tern__deadline(0.05));
    RANK_CHECK(rank, tern__control_is_healthy(s.control));
    if (tern__control_is_same_host(s.control, b->victim) && find_no_partner(&s, rank, b->victim)) return 1;
    get_up(&s);
    return 0;
}

static void a_goodbye_is_no_failure(void **state)
{
    (void)state;
    board *b = board_new();
    for (b->victim = 0; b->victim < 3; b->victim++) {
        assert_ranks_ok(ranks_run(3, leave_first, b));
        assert_ranks_ok(ranks_run_threads(3, leave_first, b));
    }
    board_free(b);
}

/* Reads the SigBlk line of this process's thread `name`: all signals are blocked but those of its own faults,
 * SIGKILL, SIGSTOP and the C library's two. */
static bool blocks_the_programs_signals(const char *name)
{
    static const int open_ones[] = {SIGKILL, SIGSTOP, 32, 33, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    unsigned long long wanted = ~0ull;
    bool blocks = false;
    for (size_t i = 0; i < TERN__COUNT(open_ones); i++) wanted &= ~(1ull << (open_ones[i] - 1));
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], status[4096] = {0};
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && read(fd, status, sizeof(status) - 1) > 0 && strstr(status, name)) {
            const char *mask = strstr(status, "SigBlk:\t");
            blocks = mask && strtoull(mask + 8, NULL, 16) == wanted;
        }
        close(fd);
    }
    closedir(tasks);
    return blocks;
}

/* A thread that has not run yet has the mask with which the C library creates it. */
static bool await_mask(const char *name)
{
    int64_t end = tern__deadline(5);
    while (!blocks_the_programs_signals(name) && tern__now_ns() < end)
        tern__poll(NULL, 0, tern__deadline(0.001));
    return blocks_the_programs_signals(name);
}

static int look_at_threads(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, await_mask("tern-control"));
    RANK_CHECK(rank, rank != 0 || await_mask("tern-store"));
    get_up(&s);
    return 0;
}

static void the_programs_signals_do_not_reach_our_threads(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, look_at_threads, NULL));
}

/* ---- descriptors ---- */

static int make_memfd(int from, int to, int tag)
{
    char text[64];
    int fd = memfd_create("test", MFD_CLOEXEC),
        used = snprintf(text, sizeof(text), "%d>%d #%d", from, to, tag);
    return fd >= 0 && write(fd, text, (size_t)used) == used ? fd : -1;
}

static bool is_memfd(int fd, int from, int to, int tag)
{
    char expected[64], text[64] = {0};
    snprintf(expected, sizeof(expected), "%d>%d #%d", from, to, tag);
    return pread(fd, text, sizeof(text) - 1, 0) > 0 && !strcmp(text, expected);
}

static int send_two(seat *s, int rank, int to, tern_error *err)
{
    for (int tag = 1; tag <= 2; tag++) {
        int fd = make_memfd(rank, to, tag);
        RANK_CHECK(rank, fd >= 0);
        tern__control_send_fd(s->control, to, (uint64_t)tag, fd, err);
        close(fd);
    }
    return 0;
}

/* Receives them in the opposite order. */
static int receive_two(seat *s, int rank, int from, tern_error *err)
{
    for (int tag = 2; tag >= 1; tag--) {
        int fd = -1;
        tern__control_recv_fd(s->control, from, (uint64_t)tag, 10, &fd, err);
        RANK_CHECK_OK(rank, *err);
        RANK_CHECK(rank, is_memfd(fd, from, rank, tag));
        RANK_CHECK(rank, fcntl(fd, F_GETFD) & FD_CLOEXEC);
        close(fd);
    }
    return 0;
}

static int pass_to_all(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    for (int to = 0; to < boot->world; to++)
        if (to != rank && send_two(&s, rank, to, &err)) return 1;
    RANK_CHECK_OK(rank, err);
    for (int from = 0; from < boot->world; from++)
        if (from != rank && receive_two(&s, rank, from, &err)) return 1;
    get_up(&s);
    return 0;
}

static void descriptors_arrive_under_their_tags(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world *= 2) {
        assert_ranks_ok(ranks_run(world, pass_to_all, NULL));
        assert_ranks_ok(ranks_run_threads(world, pass_to_all, NULL));
    }
}

static int misuse_descriptors(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    int fd = -1;
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    const int bad[] = {-1, rank, boot->world};
    for (size_t i = 0; i < TERN__COUNT(bad); i++) {
        RANK_CHECK(rank, tern__control_send_fd(s.control, bad[i], 1, 0, NULL) == TERN_E_INVALID);
        RANK_CHECK(rank, tern__control_recv_fd(s.control, bad[i], 1, 0, &fd, NULL) == TERN_E_INVALID);
    }
    RANK_CHECK(rank, tern__control_send_fd(s.control, 1 - rank, 1, -1, NULL) == TERN_E_SYSTEM);
    int64_t start = tern__now_ns();
    RANK_CHECK(rank, tern__control_recv_fd(s.control, 1 - rank, 7, 0.1, &fd, &err) == TERN_E_TIMEOUT);
    RANK_CHECK(rank, tern__now_ns() - start >= 100000000);
    RANK_CHECK(rank, strstr(err.text, rank ? "rank 0 (" : "rank 1 ("));
    RANK_CHECK(rank, all_are_here(arg, boot->world));
    get_up(&s);
    return 0;
}

static int pass_to_another_host(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    int fd = -1;
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern__control_send_fd(s.control, 1 - rank, 1, 0, &err) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(err.text, "on another host"));
    RANK_CHECK(rank, tern__control_recv_fd(s.control, 1 - rank, 1, 10, &fd, NULL) == TERN_E_INVALID);
    RANK_CHECK(rank, all_are_here(arg, boot->world));
    get_up(&s);
    return 0;
}

static void no_descriptor_goes_to_another_host(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, pass_to_another_host, b));
    board_free(b);
}

static void descriptors_from_nobody_time_out(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, misuse_descriptors, b));
    board_free(b);
}

static int receive_without_room(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) {
        RANK_CHECK(rank, await_count(&b->ready, 1));
        RANK_CHECK(rank, !send_two(&s, rank, 1, &err));
    } else {
        int fd = -1, top = dup(0);
        close(top);
        const struct rlimit limit = {(rlim_t)top, (rlim_t)top};
        RANK_CHECK(rank, !setrlimit(RLIMIT_NOFILE, &limit));
        atomic_fetch_add(&b->ready, 1);
        RANK_CHECK(rank, tern__control_recv_fd(s.control, 0, 1, 10, &fd, &err) == TERN_E_SYSTEM);
        RANK_CHECK(rank, strstr(err.text, "ulimit -n"));
        RANK_CHECK(rank, tern__control_is_healthy(s.control));
    }
    get_up(&s);
    return 0;
}

static void a_descriptor_too_many_is_an_error_of_its_receiver(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, receive_without_room, b));
    board_free(b);
}

/* ---- death ---- */

enum { DIE_KILLED, DIE_KILLED_WITH_A_CHILD, DIE_KILLED_WITH_A_SECRET_CHILD, DIE_BY_EXIT };

/* A forked child has copies of the sockets, which stay open if the library does not know of the fork. */
static void have_child(bool is_secret)
{
    if (is_secret ? _Fork() : fork()) return;
    prctl(PR_SET_PDEATHSIG, 0);
    tern__poll(NULL, 0, tern__deadline(3));
    _exit(0);
}

/* A rank that waits to be killed, or for another rank's death. */
static int wait_for_death(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    tern__control_wake_set(s.control, on_event, &b->reports[rank].seen_at);
    if (rank == b->victim && b->mode == DIE_KILLED_WITH_A_CHILD) have_child(false);
    if (rank == b->victim && b->mode == DIE_KILLED_WITH_A_SECRET_CHILD) have_child(true);
    atomic_fetch_add(&b->ready, 1);
    if (rank == b->victim && b->mode == DIE_BY_EXIT) {
        await_count(&b->go, 1);
        _exit(0);
    }
    int status = await_failure(s.control, rank, b);
    get_up(&s);
    return status;
}

static double lose_one(int world, int victim, int mode)
{
    board *b = board_new();
    char expected[128];
    double slowest = 0;
    b->victim = victim;
    b->mode = mode;
    ranks r = ranks_start(world, wait_for_death, b);
    assert_true(await_count(&b->ready, world));
    snprintf(expected, sizeof(expected), "pid %d) was lost: killed or exited without tern_group_close",
             (int)r.pids[victim]);
    int64_t start = tern__now_ns();
    if (mode == DIE_BY_EXIT)
        atomic_store(&b->go, 1);
    else
        assert_return_code(kill(r.pids[victim], SIGKILL), errno);
    ranks_wait(&r);
    for (int rank = 0; rank < world; rank++) {
        const report *seen = &b->reports[rank];
        if (rank == victim) continue;
        assert_int_equal(r.status[rank], 0);
        assert_int_equal(seen->code, TERN_E_PEER);
        char who[32];
        snprintf(who, sizeof(who), "rank %d (", victim);
        assert_ptr_equal(strstr(seen->text, who), seen->text);
        assert_non_null(strstr(seen->text, expected));
        assert_true(seen->seen_at > start);
        slowest = TERN__MAX(slowest, (double)(seen->seen_at - start) * 1e-9);
    }
    assert_int_equal(r.status[victim], mode == DIE_BY_EXIT ? 0 : 128 + SIGKILL);
    assert_true(slowest < RANKS_SOON_S);
    board_free(b);
    return slowest;
}

static void a_killed_rank_is_known_and_named_within_a_second(void **state)
{
    (void)state;
    static const int worlds[] = {2, 3, 4, 8};
    double slowest = 0,
           quickest = RANKS_SOON_S; /* in case the machine is busy, the fastest of several tries counts */
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        for (int victim = 0; victim < worlds[i]; victim += TERN__MAX(1, worlds[i] - 1)) {
            double seconds = lose_one(worlds[i], victim, DIE_KILLED);
            slowest = TERN__MAX(slowest, seconds);
            quickest = TERN__MIN(quickest, seconds);
        }
    assert_true(quickest < 1.0);
    print_message("slowest of all: %.1f ms after the kill\n", slowest * 1e3);
}

static void a_child_that_holds_the_sockets_does_not_hide_the_death(void **state)
{
    (void)state;
    print_message("%.1f ms after the kill\n", lose_one(3, 1, DIE_KILLED_WITH_A_CHILD) * 1e3);
}

static void nor_does_one_that_nobody_knows_of(void **state)
{
    (void)state;
    lose_one(3, 1, DIE_KILLED_WITH_A_SECRET_CHILD);
}

static void an_exit_without_goodbye_is_a_loss(void **state)
{
    (void)state;
    lose_one(3, 2, DIE_BY_EXIT);
}

/* A receiver with a long timeout learns at once of the sender's death. */
static int wait_for_descriptor(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    int fd = -1;
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->ready, 1);
    int status = tern__control_recv_fd(s.control, 1 - rank, 1, 20, &fd, &err);
    b->reports[rank].seen_at = tern__now_ns();
    RANK_CHECK(rank, status == TERN_E_PEER && strstr(err.text, "rank 1 ("));
    get_up(&s);
    return 0;
}

static void a_death_ends_the_wait_for_a_descriptor(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = ranks_start(2, wait_for_descriptor, b);
    assert_true(await_count(&b->ready, 2));
    int64_t start = tern__now_ns();
    kill(r.pids[1], SIGKILL);
    ranks_wait(&r);
    assert_int_equal(r.status[0], 0);
    assert_true(b->reports[0].seen_at - start < RANKS_SOON_S * INT64_C(1000000000));
    board_free(b);
}

/* ---- aborts ---- */

/* Every rank aborts as soon as it learns of an abort, as a group does. All must name the first one. */
static int abort_in_chain(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    b->reports[rank].pid = getpid();
    RANK_CHECK(rank, all_are_here(b, boot->world));
    if (rank == b->victim) tern__control_abort(s.control, TERN_E_SHAPE, "linear \"fc1\": 3 is not 4");
    if (await_failure(s.control, rank, b)) return 1;
    tern__control_abort(s.control, TERN_E_PEER, b->reports[rank].text);
    RANK_CHECK(rank, !tern__control_is_healthy(s.control));
    get_up(&s);
    return 0;
}

static void check_chain(const board *b, const ranks *r)
{
    char expected[256];
    assert_ranks_ok(*r);
    for (int rank = 0; rank < r->world; rank++) {
        const report *seen = &b->reports[rank];
        if (rank == b->victim) {
            assert_int_equal(seen->code, TERN_E_SHAPE);
            assert_string_equal(seen->text, "linear \"fc1\": 3 is not 4");
            continue;
        }
        assert_int_equal(seen->code, TERN_E_PEER);
        assert_int_equal(seen->native, TERN_E_SHAPE);
        snprintf(expected, sizeof(expected), "pid %d) failed: linear \"fc1\": 3 is not 4",
                 b->reports[b->victim].pid);
        const char *tail = strstr(seen->text, expected);
        assert_non_null(tail);
        assert_string_equal(tail, expected);
        assert_null(strstr(seen->text + 1, "rank ")); /* named once */
    }
}

static void an_abort_reaches_all_and_names_its_rank_once(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world *= 2) {
        board *b = board_new();
        b->victim = world - 1;
        ranks r = ranks_run(world, abort_in_chain, b);
        check_chain(b, &r);
        atomic_store(&b->ready, 0);
        r = ranks_run_threads(world, abort_in_chain, b);
        check_chain(b, &r);
        board_free(b);
    }
}

/* Several ranks may abort at once; each of them may be named. */
static int disagree(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(arg, boot->world));
    if (rank == 0)
        tern__control_abort(s.control, TERN_E_MISMATCH, "rank 0 asks for 3 elements, rank 1 for 4");
    if (await_failure(s.control, rank, arg)) return 1;
    RANK_CHECK(rank, tern__control_check(s.control, "x", &err) == TERN_E_MISMATCH);
    get_up(&s);
    return 0;
}

static void a_disagreement_is_that_of_all(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, disagree, b));
    board_free(b);
}

/* Rank 0 has lost rank 1 and tells rank 2 before rank 2 can notice it: rank 2's error is about rank 1. */
static int relay(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0}, lost = {.code = TERN_E_PEER, .text = "rank 1 (h, pid 7) was lost: x"};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(arg, boot->world));
    if (rank == 0) {
        tern__control_fail(s.control, &lost);
        tern__control_abort(s.control, TERN_E_PEER, "barrier: rank 1 (h, pid 7) was lost: x");
    }
    if (await_failure(s.control, rank, arg)) return 1;
    get_up(&s);
    return 0;
}

static void a_relayed_failure_keeps_its_words(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, relay, b));
    for (int rank = 0; rank < 3; rank++)
        assert_string_equal(b->reports[rank].text, "rank 1 (h, pid 7) was lost: x");
    board_free(b);
}

static int abort_and_exit(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(b, boot->world));
    if (rank == 1) {
        tern__control_abort(s.control, TERN_E_IO, "disk full");
        _exit(0);
    }
    int status = await_failure(s.control, rank, b);
    get_up(&s);
    return status;
}

static void an_abort_wins_over_the_death_that_follows(void **state)
{
    (void)state;
    for (int i = 0; i < 25; i++) {
        board *b = board_new();
        assert_ranks_ok(ranks_run(3, abort_and_exit, b));
        assert_non_null(strstr(b->reports[0].text, "failed: disk full"));
        assert_non_null(strstr(b->reports[2].text, "failed: disk full"));
        board_free(b);
    }
}

/* An error text of the largest size arrives shortened, but intact. */
static int abort_at_length(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    char text[2 * TERN_ERROR_TEXT];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_are_here(arg, boot->world));
    if (rank == 0) tern__control_abort(s.control, TERN_E_IO, text);
    if (await_failure(s.control, rank, arg)) return 1;
    get_up(&s);
    return 0;
}

static void a_long_abort_is_shortened(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, abort_at_length, b));
    assert_int_equal(strlen(b->reports[1].text), TERN_ERROR_TEXT - 1);
    assert_non_null(strstr(b->reports[1].text, "failed: xxxx"));
    board_free(b);
}

static int abort_beside_a_stopped_rank(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    atomic_fetch_add(&b->ready, 1);
    if (rank == 0) {
        RANK_CHECK(rank, await_count(&b->go, 1));
        int64_t start = tern__now_ns();
        tern__control_abort(s.control, TERN_E_TIMEOUT, "waited too long");
        RANK_CHECK(rank, tern__now_ns() - start < RANKS_SOON_S * INT64_C(1000000000));
        atomic_fetch_add(&b->go, 1);
    } else if (await_failure(s.control, rank, b)) {
        return 1;
    }
    get_up(&s);
    return 0;
}

static void an_abort_does_not_wait_for_a_stopped_rank(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = ranks_start(2, abort_beside_a_stopped_rank, b);
    assert_true(await_count(&b->ready, 2));
    ranks_stop(&r, 1);
    atomic_store(&b->go, 1);
    assert_true(await_count(&b->go, 2));
    assert_return_code(kill(r.pids[1], SIGCONT), errno);
    ranks_wait(&r);
    assert_ranks_ok(r);
    assert_non_null(strstr(b->reports[1].text, "failed: waited too long"));
    board_free(b);
}

/* ---- forked children ---- */

static int close_in_child(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) {
        pid_t child = fork();
        if (child == 0) {
            tern__control_abort(s.control, TERN_E_IO, "a child's opinion");
            get_up(&s);
            _exit(0);
        }
        int status;
        RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
        atomic_fetch_add(&b->go, 1);
    }
    RANK_CHECK(rank, await_count(&b->go, 1));
    tern__poll(NULL, 0, tern__deadline(0.05));
    RANK_CHECK(rank, tern__control_is_healthy(s.control));
    RANK_CHECK(rank, !tern__control_has_left(s.control, 1 - rank));
    atomic_fetch_add(&b->ready, 1);
    RANK_CHECK(rank, await_count(&b->ready, 2));
    get_up(&s);
    return 0;
}

static void a_forked_child_does_not_speak_for_its_rank(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, close_in_child, b));
    board_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EVERYWHERE(ranks_meet),
        EVERYWHERE(a_goodbye_is_no_failure),
        cmocka_unit_test_setup(the_programs_signals_do_not_reach_our_threads, one_host),
        cmocka_unit_test_setup(descriptors_arrive_under_their_tags, one_host),
        cmocka_unit_test_setup(descriptors_from_nobody_time_out, one_host),
        cmocka_unit_test_setup(a_descriptor_too_many_is_an_error_of_its_receiver, one_host),
        cmocka_unit_test_setup(no_descriptor_goes_to_another_host, two_hosts),
        EVERYWHERE(a_killed_rank_is_known_and_named_within_a_second),
        EVERYWHERE(a_child_that_holds_the_sockets_does_not_hide_the_death),
        cmocka_unit_test_setup(nor_does_one_that_nobody_knows_of, one_host),
        EVERYWHERE(an_exit_without_goodbye_is_a_loss),
        cmocka_unit_test_setup(a_death_ends_the_wait_for_a_descriptor, one_host),
        EVERYWHERE(an_abort_reaches_all_and_names_its_rank_once),
        EVERYWHERE(a_disagreement_is_that_of_all),
        EVERYWHERE(a_relayed_failure_keeps_its_words),
        EVERYWHERE(an_abort_wins_over_the_death_that_follows),
        EVERYWHERE(a_long_abort_is_shortened),
        EVERYWHERE(an_abort_does_not_wait_for_a_stopped_rank),
        EVERYWHERE(a_forked_child_does_not_speak_for_its_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
