/* test_spawn.c - tern_spawn: groups of 1 to 4 ranks; ranks that fail, are killed or do not end; a parent
 * that is killed, has a SIGCHLD handler, is PID 1 or runs out of memory. */
#include "cpus.h"
#include "ledger.h"
#include "ranks.h"

#include <tern/spawn.h>

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define MAX 4

/* Shared by the test, its ranks, and processes that open `file` again. */
typedef struct board {
    int file;
    atomic_int pids[MAX];
    atomic_int ready; /* ranks that sleep */
    double sums[MAX];
} board;

static board *board_map(int file)
{
    board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return b == MAP_FAILED ? NULL : b;
}

static board *board_new(void)
{
    int file = memfd_create("board", 0);
    assert_return_code(file, errno);
    assert_return_code(ftruncate(file, sizeof(board)), errno);
    board *b = board_map(file);
    assert_non_null(b);
    b->file = file;
    return b;
}

static void board_free(board *b)
{
    close(b->file);
    munmap(b, sizeof(*b));
}

/* Checks that neither a child, dead or alive, nor a descriptor is left. */
static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* ---- ranks that succeed ---- */

static int sum_of_ranks(int rank, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern_group_rank(world) == rank && tern_group_local_rank(world) == rank);
    b->sums[rank] = rank + 1;
    tern_all_reduce(world, &b->sums[rank], 1, TERN_F64, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(world);
    return ranks_leaks() ? 99 : 0;
}

static void test_ranks_meet(void **state)
{
    (void)state;
    board *b = board_new();
    int before = open_descriptors();
    for (int n = 1; n <= MAX; n++) {
        tern_error err = {0};
        assert_int_equal(tern_spawn(sum_of_ranks, n, b, NULL, &err), TERN_OK);
        assert_ok(err);
        assert_no_child();
        for (int rank = 0; rank < n; rank++) assert_true(b->sums[rank] == n * (n + 1) / 2.0);
    }
    assert_int_equal(open_descriptors(), before);
    board_free(b);
}

static bool says(const char *name, int value)
{
    const char *text = getenv(name);
    return text && atoi(text) == value;
}

static int check_environment(int rank, void *arg)
{
    int n = *(int *)arg;
    RANK_CHECK(rank, says("RANK", rank) && says("LOCAL_RANK", rank));
    RANK_CHECK(rank, says("WORLD_SIZE", n) && says("LOCAL_WORLD_SIZE", n));
    RANK_CHECK(rank, getenv("MASTER_ADDR") && getenv("MASTER_PORT") && getenv("TERN_PORT"));
    RANK_CHECK(rank, says("OMP_NUM_THREADS", 7));
    RANK_CHECK(rank, !getenv("TERN_LISTEN_FD") == (rank != 0));
    return 0;
}

static void test_environment_of_a_rank_only(void **state)
{
    (void)state;
    int n = 3;
    setenv("OMP_NUM_THREADS", "7", 1);
    assert_int_equal(tern_spawn(check_environment, n, &n, NULL, NULL), TERN_OK);
    unsetenv("OMP_NUM_THREADS");
    assert_null(getenv("RANK"));
    assert_null(getenv("TERN_SECRET"));
}

/* A rank's threads may use all cores, even if OpenMP has bound the parent's first thread. */
static int check_threads(int rank, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern_group_open(NULL, &err);
    RANK_CHECK_OK(rank, err);
    DIR *tasks = opendir("/proc/self/task");
    RANK_CHECK(rank, tasks);
    for (struct dirent *task; (task = readdir(tasks));)
        RANK_CHECK(rank, task->d_name[0] == '.' || cpus_are_all(atoi(task->d_name)));
    closedir(tasks);
    tern_group_close(world);
    return 0;
}

static void test_threads_of_a_rank_use_all_cores(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_spawn(check_threads, 2, NULL, NULL, &err);
    assert_ok(err);
}

/* ---- ranks that fail ---- */

static board *enter(int rank, void *arg)
{
    board *b = arg;
    atomic_store(&b->pids[rank], getpid());
    return b;
}

static _Noreturn void sleep_long(board *b)
{
    atomic_fetch_add(&b->ready, 1);
    for (;;) pause();
}

static void await_sleepers(board *b, int count)
{
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    while (atomic_load(&b->ready) < count && tern__now_ns() < deadline) usleep(200);
}

static int exit_with_3(int rank, void *arg)
{
    board *b = enter(rank, arg);
    if (rank != 1) sleep_long(b);
    await_sleepers(b, 2);
    return 3;
}

static int kill_oneself(int rank, void *arg)
{
    board *b = enter(rank, arg);
    if (rank != 1) sleep_long(b);
    await_sleepers(b, 2);
    return raise(SIGKILL);
}

static int segfault(int rank, void *arg)
{
    board *b = enter(rank, arg);
    if (rank != 1) sleep_long(b);
    await_sleepers(b, 2);
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit normally */
    return raise(SIGSEGV);
}

static int return_minus_256(int rank, void *arg)
{
    enter(rank, arg);
    return rank == 1 ? -256 : 0;
}

/* A stopped process does not handle SIGTERM. */
static int stop_oneself(int rank, void *arg)
{
    board *b = enter(rank, arg);
    if (rank != 1) {
        atomic_fetch_add(&b->ready, 1);
        raise(SIGSTOP);
        sleep_long(b);
    }
    await_sleepers(b, 2);
    return 3;
}

static int stay_on_sigterm(int rank, void *arg)
{
    board *b = enter(rank, arg);
    signal(SIGTERM, SIG_IGN);
    if (rank != 1) sleep_long(b);
    await_sleepers(b, 2);
    return 3;
}

/* The survivors learn of the death from their group and return their own error. */
static int leave_a_group(int rank, void *arg)
{
    tern_error err = {0};
    enter(rank, arg);
    tern_group *world = tern_group_open(NULL, &err);
    tern_barrier(world, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) raise(SIGKILL);
    int status = tern_barrier(world, &err);
    tern_group_close(world);
    return status == TERN_E_PEER ? 9 : 0;
}

/* The others return their own error while rank 1, which has one of its own, still closes its files. */
static int fail_slowly(int rank, void *arg)
{
    tern_error err = {0};
    enter(rank, arg);
    tern_group *world = tern_group_open(NULL, &err);
    tern_barrier(world, &err);
    RANK_CHECK_OK(rank, err);
    if (rank != 1) tern_barrier(world, &err);
    tern_group_close(world);
    if (rank == 1) usleep(100000);
    return rank == 1 ? 4 : err.code == TERN_E_PEER ? 9 : 0;
}

static void test_failing_rank_is_named(void **state)
{
    (void)state;
    static const struct {
        int (*fn)(int rank, void *arg);
        int native;
        const char *how;
    } cases[] = {
        {exit_with_3, 3, "exited with code 3"},
        {kill_oneself, 128 + SIGKILL, "was killed by signal 9 (SIGKILL)"},
        {segfault, 128 + SIGSEGV, "was killed by signal 11 (SIGSEGV)"},
        {return_minus_256, 255, "exited with code 255"},
        {stop_oneself, 3, "exited with code 3"},
        {leave_a_group, 128 + SIGKILL, "was killed by signal 9 (SIGKILL)"},
        {fail_slowly, 4, "exited with code 4"},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        board *b = board_new();
        char expected[128];
        tern_error err = {0};
        tern_spawn_opts opts = tern_spawn_defaults();
        opts.grace_s = 60;
        int64_t started = tern__now_ns();
        assert_int_equal(tern_spawn(cases[i].fn, 3, b, &opts, &err), TERN_E_PEER);
        assert_true(tern__now_ns() - started < INT64_C(50000000000)); /* no SIGKILL was needed */
        snprintf(expected, sizeof(expected), "rank 1 (pid %d) %s", b->pids[1], cases[i].how);
        assert_string_equal(err.text, expected);
        assert_string_equal(err.func, "tern_spawn");
        assert_int_equal(err.native, cases[i].native);
        assert_no_child();
        board_free(b);
    }
}

static void test_sigkill_after_the_grace(void **state)
{
    (void)state;
    board *b = board_new();
    tern_error err = {0};
    tern_spawn_opts opts = tern_spawn_defaults();
    opts.grace_s = 0.1;
    int64_t started = tern__now_ns();
    assert_int_equal(tern_spawn(stay_on_sigterm, 3, b, &opts, &err), TERN_E_PEER);
    double seconds = (double)(tern__now_ns() - started) * 1e-9;
    assert_non_null(strstr(err.text, "exited with code 3"));
    assert_true(seconds >= 0.1 && seconds < RANKS_SOON_S);
    assert_no_child();
    board_free(b);
}

/* ---- a kernel without pidfds ---- */

static int hidden; /* the errno of pidfd_open; 0: it works */

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(args, long);
    va_end(args);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (number != SYS_pidfd_open || !hidden) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    errno = hidden;
    return -1;
}

static void test_without_pidfds(void **state)
{
    static const int natives[] = {ENOSYS, EPERM};
    for (size_t i = 0; i < TERN__COUNT(natives); i++) {
        board *b = board_new();
        tern_error err = {0};
        hidden = natives[i];
        assert_int_equal(tern_spawn(exit_with_3, 3, b, NULL, &err), TERN_E_PEER);
        assert_non_null(strstr(err.text, "rank 1 (pid "));
        assert_int_equal(err.native, 3);
        assert_no_child();
        test_ranks_meet(state);
        test_sigkill_after_the_grace(state);
        hidden = 0;
        board_free(b);
    }
}

/* ---- a rank that SIGKILL cannot end ---- */

static atomic_int
    *frozen; /* the pid of a process that SIGKILL does not reach, as in a frozen control group */

int kill(pid_t pid, int number)
{
    if (frozen && number == SIGKILL && pid == atomic_load(frozen)) return 0;
    return (int)syscall(SYS_kill, pid, number);
}

static void test_rank_that_survives_sigkill(void **state)
{
    static const int natives[] = {0, ENOSYS}; /* with pidfds and without */
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(natives); i++) {
        board *b = board_new();
        char expected[192];
        tern_error err = {0};
        tern_spawn_opts opts = tern_spawn_defaults();
        opts.grace_s = 0.1;
        hidden = natives[i];
        frozen = &b->pids[2];
        assert_int_equal(tern_spawn(stay_on_sigterm, 3, b, &opts, &err), TERN_E_PEER);
        frozen = NULL;
        hidden = 0;
        snprintf(expected, sizeof(expected),
                 "rank 1 (pid %d) exited with code 3; rank 2 (pid %d) survived SIGKILL and is left behind",
                 b->pids[1], b->pids[2]);
        assert_string_equal(err.text, expected);
        assert_int_equal(err.native, 3);
        kill(b->pids[2], SIGKILL);
        assert_int_equal(waitpid(b->pids[2], NULL, 0), b->pids[2]);
        assert_no_child();
        board_free(b);
    }
}

/* ---- ranks that leave with 0 ---- */

static int leave_before_open(int rank, void *arg)
{
    tern_error err = {0};
    enter(rank, arg);
    if (rank == 1) return 0;
    tern_group *world = tern_group_open(NULL, &err);
    tern_group_close(world);
    return 9;
}

static int leave_before_reopen(int rank, void *arg)
{
    tern_error err = {0};
    enter(rank, arg);
    for (int turn = 0; turn < (rank == 1 ? 1 : 2); turn++) {
        tern_group *world = tern_group_open(NULL, &err);
        tern_barrier(world, &err);
        tern_group_close(world);
    }
    return rank == 1 ? 0 : 9;
}

static int leave_open(int rank, void *arg)
{
    tern_error err = {0};
    enter(rank, arg);
    tern_group *world = tern_group_open(NULL, &err);
    tern_barrier(world, &err);
    if (rank == 1) _exit(0);
    tern_barrier(world, &err);
    tern_group_close(world);
    return err.code ? 9 : 0;
}

static int leave_open_all(int rank, void *arg)
{
    tern_error err = {0};
    enter(rank, arg);
    tern_group *world = tern_group_open(NULL, &err);
    tern_barrier(world, &err);
    _exit(err.code ? 9 : 0);
}

static void test_rank_that_leaves_with_0(void **state)
{
    static const struct {
        int (*fn)(int rank, void *arg);
        const char *text;
    } cases[] = {
        {leave_before_open, "rank 1 exited with code 0 before tern_group_open, in which rank "},
        {leave_before_reopen, "rank 1 exited with code 0 before tern_group_open, in which rank "},
        {leave_open, ") exited with code 0 without tern_group_close; rank "},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        board *b = board_new();
        tern_error err = {0};
        int64_t started = tern__now_ns();
        assert_int_equal(tern_spawn(cases[i].fn, 3, b, NULL, &err), TERN_E_PEER);
        if (!strstr(err.text, cases[i].text) || strncmp(err.text, "rank 1", 6)) fail_msg("%s", err.text);
        assert_true(tern__now_ns() - started < INT64_C(60000000000)); /* not the 300 s of a meeting */
        assert_no_child();
        board_free(b);
    }
    *state = board_new();
    assert_int_equal(tern_spawn(leave_open_all, 1, *state, NULL, NULL), TERN_OK);
    board_free(*state);
}

/* ---- a parent with a SIGCHLD handler ---- */

static atomic_int reaped;

static void reap_all(int number)
{
    (void)number;
    int interrupted = errno;
    while (waitpid(-1, NULL, WNOHANG) > 0) atomic_fetch_add(&reaped, 1);
    errno = interrupted;
}

static bool is_blocked(int number)
{
    sigset_t mask;
    return !sigprocmask(SIG_SETMASK, NULL, &mask) && sigismember(&mask, number);
}

static int check_mask(int rank, void *arg)
{
    RANK_CHECK(rank, !is_blocked(SIGCHLD) && !is_blocked(SIGTERM));
    return sum_of_ranks(rank, arg);
}

static void test_handler_that_reaps_every_child(void **state)
{
    (void)state;
    struct sigaction before, act = {.sa_handler = reap_all, .sa_flags = SA_RESTART};
    assert_int_equal(sigaction(SIGCHLD, &act, &before), 0);
    for (int turn = 0; turn < 20; turn++) {
        board *b = board_new();
        tern_error err = {0};
        atomic_store(&reaped, 0);
        tern_spawn(check_mask, 3, b, NULL, &err);
        assert_ok(err);
        assert_int_equal(atomic_load(&reaped), 0);
        board_free(b);
    }
    board *b = board_new();
    tern_error err = {0};
    assert_int_equal(tern_spawn(exit_with_3, 3, b, NULL, &err), TERN_E_PEER);
    assert_int_equal(err.native, 3);
    board_free(b);
    assert_false(is_blocked(SIGCHLD));
    pid_t child = fork(); /* the handler is the caller's again */
    if (child == 0) _exit(0);
    for (int64_t end = tern__now_ns() + INT64_C(10000000000); !atomic_load(&reaped) && tern__now_ns() < end;)
        usleep(1000);
    assert_int_equal(atomic_load(&reaped), 1);
    sigaction(SIGCHLD, &before, NULL);
}

/* ---- a parent that is PID 1 ---- */

/* Rank 0 leaves an orphan behind that ends at once, and waits for its end to be reaped. */
static int leave_orphan(int rank, void *arg)
{
    board *b = arg;
    if (rank != 0) return 0;
    pid_t middle = fork();
    if (middle == 0) {
        pid_t orphan = fork();
        if (orphan == 0) {
            while (getppid() != 1) usleep(1000);
            _exit(0);
        }
        atomic_store(&b->pids[3], orphan);
        _exit(0);
    }
    waitpid(middle, NULL, 0);
    for (int i = 0; i < 10000 && kill(atomic_load(&b->pids[3]), 0) == 0; i++) usleep(1000);
    return kill(atomic_load(&b->pids[3]), 0) == 0 ? 8 : 0;
}

static int save_on_sigterm(int rank, void *arg)
{
    board *b = enter(rank, arg);
    sigset_t term;
    int number;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    atomic_fetch_add(&b->ready, 1);
    await_sleepers(b, 2);
    if (rank == 0) kill(1, SIGTERM);
    sigwait(&term, &number);
    b->sums[rank] = 1;
    return 0;
}

static int be_killed_by_sigterm(int rank, void *arg)
{
    if (rank == 0) kill(1, SIGTERM);
    sleep_long(arg);
}

/* Runs as PID 1 of a namespace and returns the number of the check that failed. */
static int be_first(const char *file)
{
    board *b = board_map(atoi(file));
    tern_error err = {0};
    if (getpid() != 1) return 70;
    pid_t own = fork();
    if (own == 0) _exit(5);
    if (tern_spawn(leave_orphan, 2, b, NULL, &err)) return tern_error_print(&err), 71;
    int status;
    if (waitpid(own, &status, 0) != own || WEXITSTATUS(status) != 5) return 72; /* the caller's own child */
    if (tern_spawn(save_on_sigterm, 2, b, NULL, &err)) return tern_error_print(&err), 73;
    if (b->sums[0] + b->sums[1] != 2) return 74;
    if (tern_spawn(be_killed_by_sigterm, 2, b, NULL, &err) != TERN_E_PEER || err.native != 128 + SIGTERM)
        return 75;
    return 0;
}

static void test_first_process_of_a_container(void **state)
{
    (void)state;
    board *b = board_new();
    char file[16];
    int status;
    snprintf(file, sizeof(file), "%d", b->file);
    pid_t outer = fork();
    if (outer == 0) {
        if (unshare(CLONE_NEWPID | CLONE_NEWNS)) _exit(69);
        pid_t first = fork();
        if (first == 0) {
            if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
                mount("proc", "/proc", "proc", 0, NULL))
                _exit(69);
            _exit(execl("/proc/self/exe", "first", "first", file, NULL));
        }
        _exit(waitpid(first, &status, 0) == first && WIFEXITED(status) ? WEXITSTATUS(status) : 68);
    }
    assert_int_equal(waitpid(outer, &status, 0), outer);
    board_free(b);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 69) skip_test("no namespaces here");
    assert_int_equal(status, 0);
}

/* ---- a parent that dies ---- */

static int sleep_on_board(int rank, void *arg)
{
    board *b = enter(rank, arg);
    signal(SIGTERM, SIG_IGN);
    sleep_long(b);
}

static bool is_dead(pid_t pid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return true;
    bool is_read = fgets(text, sizeof(text), file);
    fclose(file);
    const char *name_end = is_read ? strrchr(text, ')') : NULL;
    return !name_end || name_end[2] == 'Z' ||
           name_end[2] == 'X'; /* the process that reaps orphans may be slow */
}

/* Runs in a process started for it: a forked one has two threads under ThreadSanitizer. */
static int be_parent(const char *file)
{
    tern_error err = {0};
    tern_spawn(sleep_on_board, 3, board_map(atoi(file)), NULL, &err);
    return tern_error_print(&err);
}

static void test_ranks_die_with_the_parent(void **state)
{
    (void)state;
    board *b = board_new();
    char file[16];
    snprintf(file, sizeof(file), "%d", b->file);
    pid_t parent = fork();
    if (parent == 0) _exit(execl("/proc/self/exe", "parent", file, NULL));
    assert_true(parent > 0);
    await_sleepers(b, 3);
    assert_int_equal(atomic_load(&b->ready), 3);
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    int64_t deadline = tern__now_ns() + INT64_C(10000000000);
    bool is_orphaned = false;
    for (int rank = 0; rank < 3; rank++) {
        pid_t pid = atomic_load(&b->pids[rank]);
        while (!is_dead(pid) && tern__now_ns() < deadline) usleep(1000);
        if (is_dead(pid)) continue;
        is_orphaned = true;
        kill(pid, SIGKILL);
    }
    assert_false(is_orphaned);
    board_free(b);
}

/* ---- a parent that runs out of something ---- */

static int do_nothing(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    return 0;
}

/* Descriptors run out while the ranks are being watched: the started ranks are killed. */
static void test_out_of_descriptors(void **state)
{
    (void)state;
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    int reached = 0;
    for (low.rlim_cur = 3; low.rlim_cur < 64; low.rlim_cur++) {
        board *b = board_new();
        tern_error err = {0};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        int status = tern_spawn(do_nothing, 3, b, NULL, &err);
        setrlimit(RLIMIT_NOFILE, &before);
        assert_no_child();
        board_free(b);
        if (!status) break;
        assert_int_equal(status, TERN_E_SYSTEM);
        reached |= strstr(err.text, "cannot watch rank") != NULL;
    }
    assert_true(reached);
    assert_true(low.rlim_cur < 64);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    int status = TERN_E_MEMORY;
    for (int at = 1; status; at++) {
        ledger books = {.refuse_at = at};
        tern_error err = {0};
        ledger_open(&books);
        status = tern_spawn(do_nothing, 2, NULL, NULL, &err);
        ledger_close(&books);
        assert_true(status == TERN_OK || status == TERN_E_MEMORY);
        assert_true(at < 10);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2) return be_first(argv[2]);
    if (argc > 1) return be_parent(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_meet),
        cmocka_unit_test(test_environment_of_a_rank_only),
        cmocka_unit_test(test_threads_of_a_rank_use_all_cores),
        cmocka_unit_test(test_failing_rank_is_named),
        cmocka_unit_test(test_sigkill_after_the_grace),
        cmocka_unit_test(test_without_pidfds),
        cmocka_unit_test(test_rank_that_survives_sigkill),
        cmocka_unit_test(test_rank_that_leaves_with_0),
        cmocka_unit_test(test_handler_that_reaps_every_child),
        cmocka_unit_test(test_first_process_of_a_container),
        cmocka_unit_test(test_ranks_die_with_the_parent),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
