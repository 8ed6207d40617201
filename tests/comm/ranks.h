/* ranks.h - runs a body as N ranks, which are forked processes or threads. They share a secret and a
 * listening socket on a free port of 127.0.0.1.
 *
 * A body returns 0 for success. It must not use cmocka's asserts, which jump into the parent's frames; use
 * RANK_CHECK. Ranks that are still running at the deadline are killed and count as 128 + SIGKILL. */
#ifndef TERN_TESTS_COMM_RANKS_H
#define TERN_TESTS_COMM_RANKS_H

#include "check.h"

#include "comm/bootstrap/bootstrap.h"
#include "comm/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#ifdef __SANITIZE_THREAD__
/* A race fails its rank at once, and a rank exits without the second that TSan would wait for more reports.
 */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "halt_on_error=1:atexit_sleep_ms=0";
}
#endif

#define RANKS_MAX 64
/* A limit against hangs only. On two cores that forty processes shared, eight ranks took 40 s for all
 * collectives over three hosts; with seventeen processes, two ranks took 100 s for a hundred thousand works.
 */
#define RANKS_DEADLINE_S 200
/* The group's timeout for ranks without a fault, sufficient on a busy machine. */
#define RANKS_TIMEOUT_S 50
/* A call that need not wait returns within this time, even on a slow and busy machine. It is well below the
 * timeouts of 10 s or more in the tests that use it. */
#define RANKS_SOON_S 8

/* Waits until *count is at least `wanted`. Returns false at the deadline of ranks. */
static inline bool await_count(atomic_int *count, int wanted)
{
    int64_t deadline = tern__deadline(RANKS_DEADLINE_S);
    while (atomic_load(count) < wanted && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__deadline(0.001));
    return atomic_load(count) >= wanted;
}

typedef int (*ranks_body)(int rank, const tern__bootstrap *boot, void *arg);

/* [rank]: the exit status, or 128 + the signal that killed it. */
typedef struct ranks {
    int world;
    pid_t pids[RANKS_MAX];
    int status[RANKS_MAX];
} ranks;

/* Used in a body: prints the failed condition and fails the rank. */
#define RANK_CHECK(rank, condition)                                                                          \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                   \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

#define RANK_CHECK_OK(rank, err)                                                                             \
    do {                                                                                                     \
        if ((err).code) {                                                                                    \
            fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank, __FILE__, __LINE__,                            \
                    tern_status_name((err).code), (err).text);                                               \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

/* Returns rank 0's bootstrap. The other ranks have another `rank` and no listening socket. */
static inline tern__bootstrap ranks_boot(int world)
{
    tern__bootstrap boot = {
        .world = world, .local_world = world, .has_secret = true, .source = "RANK/WORLD_SIZE"};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    boot.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(boot.listen_fd >= 0);
    assert_return_code(bind(boot.listen_fd, (struct sockaddr *)&at, sizeof(at)), errno);
    assert_return_code(listen(boot.listen_fd, SOMAXCONN), errno);
    assert_return_code(getsockname(boot.listen_fd, (struct sockaddr *)&at, &size), errno);
    boot.port = ntohs(at.sin_port);
    snprintf(boot.addr, sizeof(boot.addr), "127.0.0.1");
    assert_true(sodium_init() >= 0);
    randombytes_buf(boot.secret, sizeof(boot.secret));
    return boot;
}

/* With TERN_TEST_HOSTS=2 ranks are assigned to two simulated hosts in turn, so the same tests run over a
 * transport. */
static inline const char *ranks_host_of(int rank)
{
    static const char *const names[] = {"attic", "barn", "cellar", "den", "east", "forge", "garden", "hall"};
    const char *hosts = getenv("TERN_TEST_HOSTS");
    return hosts ? names[rank % atoi(hosts)] : NULL;
}

/* False for a world of fewer ranks than simulated hosts: it is that of the test over fewer hosts. */
static inline bool ranks_fill_hosts(int world)
{
    const char *hosts = getenv("TERN_TEST_HOSTS");
    return !hosts || world >= atoi(hosts);
}

static inline tern__bootstrap ranks_boot_of(const tern__bootstrap *zero, int rank)
{
    tern__bootstrap boot = *zero;
    boot.rank = boot.local_rank = rank;
    boot.host_id = ranks_host_of(rank);
    if (rank != 0) boot.listen_fd = -1;
    return boot;
}

/* Checks for leaks under ASan, since _exit skips its report. */
static inline int ranks_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
    return __lsan_do_recoverable_leak_check();
#else
    return 0;
#endif
}

/* Forks one rank, which is killed when this process dies. */
static inline pid_t ranks_fork(const tern__bootstrap *zero, int rank, ranks_body body, void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tern__bootstrap boot = ranks_boot_of(zero, rank);
    if (rank != 0) close(zero->listen_fd);
    int status = body(rank, &boot, arg);
    if (!status && ranks_leaks()) status = 99;
    fflush(NULL);
    _exit(status);
}

/* Forks all ranks. */
static inline ranks ranks_start(int world, ranks_body body, void *arg)
{
    ranks r = {.world = world};
    assert_true(world >= 1 && world <= RANKS_MAX);
    tern__bootstrap zero = ranks_boot(world);
    for (int rank = 0; rank < world; rank++) {
        r.pids[rank] = ranks_fork(&zero, rank, body, arg);
        assert_true(r.pids[rank] > 0);
    }
    close(zero.listen_fd);
    return r;
}

/* Waits for all ranks; kills those that still run after RANKS_DEADLINE_S. */
static inline void ranks_wait(ranks *r)
{
    int64_t deadline = tern__now_ns() + RANKS_DEADLINE_S * INT64_C(1000000000);
    for (int left = r->world; left;) {
        for (int rank = 0; rank < r->world; rank++) {
            int status;
            if (r->pids[rank] <= 0 || waitpid(r->pids[rank], &status, WNOHANG) == 0) continue;
            r->status[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            r->pids[rank] = 0;
            left--;
        }
        bool late = tern__now_ns() >= deadline;
        for (int rank = 0; late && rank < r->world; rank++)
            if (r->pids[rank] > 0) kill(r->pids[rank], SIGKILL);
        if (left) usleep(1000);
    }
}

/* Stops a rank, as SIGSTOP or a debugger does, and waits until it has stopped. */
static inline void ranks_stop(const ranks *r, int rank)
{
    int status;
    assert_return_code(kill(r->pids[rank], SIGSTOP), errno);
    assert_int_equal(waitpid(r->pids[rank], &status, WUNTRACED), r->pids[rank]);
}

static inline ranks ranks_run(int world, ranks_body body, void *arg)
{
    ranks r = ranks_start(world, body, arg);
    ranks_wait(&r);
    return r;
}

typedef struct ranks_thread {
    tern__bootstrap boot;
    ranks_body body;
    void *arg;
    int status;
} ranks_thread;

static inline void *ranks_thread_main(void *arg)
{
    ranks_thread *t = arg;
    t->status = t->body(t->boot.rank, &t->boot, t->arg);
    return NULL;
}

/* Runs the ranks as threads. A thread cannot be killed: CTest's timeout is the deadline here. */
static inline ranks ranks_run_threads(int world, ranks_body body, void *arg)
{
    ranks r = {.world = world};
    ranks_thread threads[RANKS_MAX];
    pthread_t ids[RANKS_MAX];
    assert_true(world >= 1 && world <= RANKS_MAX);
    tern__bootstrap zero = ranks_boot(world);
    for (int rank = 0; rank < world; rank++) {
        threads[rank] = (ranks_thread){.boot = ranks_boot_of(&zero, rank), .body = body, .arg = arg};
        assert_int_equal(pthread_create(&ids[rank], NULL, ranks_thread_main, &threads[rank]), 0);
    }
    for (int rank = 0; rank < world; rank++) {
        pthread_join(ids[rank], NULL);
        r.status[rank] = threads[rank].status;
    }
    return r;
}

#define assert_ranks_ok(result)                                                                              \
    do {                                                                                                     \
        const ranks outcome_ = (result);                                                                     \
        for (int rank_ = 0; rank_ < outcome_.world; rank_++)                                                 \
            if (outcome_.status[rank_])                                                                      \
                fail_msg("rank %d of %d ended with %d", rank_, outcome_.world, outcome_.status[rank_]);      \
    } while (0)

#endif
