/* test_opening.c - a rank that stops at any system call of tern_group_open. Whatever the others wait in, a
 * warning on each host that waits names it, once, and when it continues the group opens.
 *
 * The functions below stand before the C library's, also for what gloo calls. They count the calls of the
 * thread that opens the group, and stop the process before a certain one. */
#include "comm/control_fixture.h"

#include "comm/group.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

enum { WORLD = 3, CASES = 8, NEVER = 1 << 30 };

static _Thread_local int calls_left; /* 0: this thread is not counted */

static void count_call(void)
{
    if (calls_left && --calls_left == 0) raise(SIGSTOP);
}

/* The C library's function of the same name. */
#define NEXT(name)                                                                                           \
    static __typeof__(&(name)) found;                                                                        \
    __typeof__(&(name)) next = __atomic_load_n(&found, __ATOMIC_RELAXED);                                    \
    count_call();                                                                                            \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);                                                    \
    __atomic_store_n(&found, next, __ATOMIC_RELAXED)

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    NEXT(poll);
    return next(fds, count, timeout);
}

int socket(int domain, int type, int protocol)
{
    NEXT(socket);
    return next(domain, type, protocol);
}

int connect(int fd, const struct sockaddr *at, socklen_t size)
{
    NEXT(connect);
    return next(fd, at, size);
}

int accept4(int fd, struct sockaddr *at, socklen_t *size, int flags)
{
    NEXT(accept4);
    return next(fd, at, size, flags);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    NEXT(send);
    return next(fd, data, bytes, flags);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    NEXT(recv);
    return next(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    NEXT(sendmsg);
    return next(fd, message, flags);
}

int eventfd(unsigned value, int flags)
{
    NEXT(eventfd);
    return next(value, flags);
}

int memfd_create(const char *name, unsigned flags)
{
    NEXT(memfd_create);
    return next(name, flags);
}

ssize_t getrandom(void *data, size_t bytes, unsigned flags)
{
    NEXT(getrandom);
    return next(data, bytes, flags);
}

/* ---- ranks ---- */

/* b->mode: before which call the victim stops; if there are fewer, it stops once the group is open. */
static void keep_warning(tern_log_level level, const char *text, void *arg)
{
    board *b = arg;
    bool is_of_stranger = strstr(text, "no proof or query in time") || strstr(text, "has connected, but of");
    if (level != TERN_LOG_WARN || is_of_stranger) return;
    int n = atomic_fetch_add(&b->events, 1);
    if (n >= RANKS_MAX) return;
    b->reports[n].pid = getpid();
    snprintf(b->reports[n].text, sizeof(b->reports[n].text), "%s", text);
}

static int open_and_stop(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    tern__bootstrap own = host_of(boot);
    tern_group_opts opts = tern_group_defaults();
    opts.connect_timeout_s = opts.timeout_s = 8; /* the warnings come after half of it */
    tern_log_set(keep_warning, b);
    calls_left = rank == b->victim ? b->mode : NEVER;
    tern_group *group = tern__group_open_boot(&own, &opts, &err);
    int left = calls_left;
    calls_left = 0;
    if (rank == b->victim && left) raise(SIGSTOP);
    b->reports[rank].code = NEVER - left;
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(group);
    return 0;
}

/* ---- cases: several at once, since they only wait ---- */

typedef struct trial {
    board *b;
    ranks r;
    int calls;
} trial;

/* Returns how many calls the victim makes. */
static int count_calls(int victim)
{
    board *b = board_new();
    int status;
    b->victim = victim;
    b->mode = NEVER;
    ranks r = ranks_start(WORLD, open_and_stop, b);
    assert_int_equal(waitpid(r.pids[victim], &status, WUNTRACED), r.pids[victim]);
    assert_true(WIFSTOPPED(status));
    assert_return_code(kill(r.pids[victim], SIGCONT), errno);
    ranks_wait(&r);
    assert_ranks_ok(r);
    int calls = b->reports[victim].code;
    board_free(b);
    return calls;
}

/* Returns why the warnings are not the expected ones, or NULL. `pids`: of the ranks, which have ended. */
static const char *check_warnings(const trial *t, const int *pids)
{
    const board *b = t->b;
    char who[32];
    int of_host[8] = {0}, count = atomic_load(&b->events);
    snprintf(who, sizeof(who), "rank %d", b->victim);
    for (int i = 0; i < count; i++) {
        const char *text = b->reports[i].text;
        int rank = 0;
        while (rank < WORLD - 1 && pids[rank] != b->reports[i].pid) rank++;
        if (rank == b->victim) return "it warns itself";
        if (++of_host[rank % hosts] > 1) return "a host warns twice";
        if (!strstr(text, who) ||
            !(strstr(text, "stopped") || strstr(text, "missing: ") || strstr(text, "hang")))
            return "a warning does not name it";
    }
    return count ? NULL : "no warning";
}

static int print_failure(const trial *t, const int *pids)
{
    const board *b = t->b;
    const char *why = check_warnings(t, pids);
    for (int rank = 0; rank < WORLD && !why; rank++)
        if (t->r.status[rank]) why = "a rank has failed";
    if (!why) return 0;
    print_error("rank %d of pids %d, %d, %d stops before call %d of %d: %s\n", b->victim, pids[0], pids[1],
                pids[2], b->mode, t->calls, why);
    for (int i = 0; i < atomic_load(&b->events) && i < RANKS_MAX; i++)
        print_error("    %d: %s\n", b->reports[i].pid, b->reports[i].text);
    return 1;
}

/* Continues each victim a while after the first warning, or when the others are about to give up. */
static void continue_victims(trial *t, int victim)
{
    int64_t end = tern__deadline(7), after[CASES] = {0};
    for (int left = CASES; left;) {
        usleep(10000);
        for (int i = 0; i < CASES; i++) {
            int64_t now = tern__now_ns();
            if (!after[i]) after[i] = atomic_load(&t[i].b->events) ? now + INT64_C(1000000000) : 0;
            if (after[i] == INT64_MAX || (now < end && (!after[i] || now < after[i]))) continue;
            after[i] = INT64_MAX;
            left--;
            assert_return_code(kill(t[i].r.pids[victim], SIGCONT), errno);
        }
    }
}

static int try_points(int victim, const int *points, int calls)
{
    trial t[CASES];
    int pids[CASES][WORLD], status, failures = 0;
    for (int i = 0; i < CASES; i++) {
        t[i] = (trial){.b = board_new(), .calls = calls};
        t[i].b->victim = victim;
        t[i].b->mode = points[i];
        t[i].r = ranks_start(WORLD, open_and_stop, t[i].b);
        memcpy(pids[i], t[i].r.pids, sizeof(pids[i]));
    }
    for (int i = 0; i < CASES; i++)
        assert_int_equal(waitpid(pids[i][victim], &status, WUNTRACED), pids[i][victim]);
    continue_victims(t, victim);
    for (int i = 0; i < CASES; i++) {
        ranks_wait(&t[i].r);
        failures += print_failure(&t[i], pids[i]);
        board_free(t[i].b);
    }
    return failures;
}

static void a_rank_that_stops_anywhere_in_the_opening_is_named_once(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    if (hosts > 1) skip_test("ThreadSanitizer sees nothing of what libgloo locks");
#endif
    if (hosts > 1) need_part("gloo");
    assert_int_equal(choose_plugins(), 0);
    srand((unsigned)tern__now_ns());
    int failures = 0;
    for (int victim = 0; victim < WORLD; victim++) {
        int points[CASES], calls = count_calls(victim);
        for (int i = 0; i < CASES; i++) points[i] = 1 + calls * i / CASES + rand() % (calls / CASES + 1);
        failures += try_points(victim, points, calls);
    }
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_rank_that_stops_anywhere_in_the_opening_is_named_once, one_host),
        cmocka_unit_test_setup(a_rank_that_stops_anywhere_in_the_opening_is_named_once, two_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
