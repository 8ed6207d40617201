/* spawn.c - tern_spawn: forks ranks and waits for them.
 *
 * One epoll waits for all ranks, on their pidfds, which become readable when a rank ends. This needs no
 * SIGCHLD handler and reaps no other child of the caller. epoll reports the ranks in the order in which they
 * ended, so the first failed one is the cause and later failures are its consequences. Where there are no
 * pidfds (before Linux 5.3, or under an old filter of system calls), it asks for each rank every 10 ms. There
 * is no deadline until a rank fails; then the others get SIGTERM, and SIGKILL after the grace time. */
#include <tern/spawn.h>

#include "base/cores.h"
#include "base/opts.h"
#include "comm/launch.h"
#include "comm/sys.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char func[] = "tern_spawn";

typedef int rank_fn(int rank, void *ctx);

typedef struct spawner {
    tern__launch launch;
    pid_t *pids;  /* 0: not started, or already reaped */
    int *pidfds;  /* -1: the same, or there are no pidfds */
    int epoll_fd; /* readable when a rank has ended */
    int alive;
    bool polls;     /* there are no pidfds */
    bool was_ended; /* the remaining ranks got SIGTERM */
    int64_t deadline;
    double grace_s;
} spawner;

/* ---- may this process fork? ---- */

/* Writes the name of a thread other than this one; "" if there is none. */
static int other_thread(char *name, size_t size, tern_error *err)
{
    char path[64];
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot read /proc/self/task");
    *name = '\0';
    for (struct dirent *task; !*name && (task = readdir(tasks));) {
        long id = strtol(task->d_name, NULL, 10);
        if (id <= 0 || id == gettid()) continue;
        snprintf(path, sizeof(path), "/proc/self/task/%ld/comm", id);
        FILE *comm = fopen(path, "re");
        if (comm && fgets(name, (int)size, comm)) name[strcspn(name, "\n")] = '\0';
        if (comm) fclose(comm);
    }
    closedir(tasks);
    return TERN_OK;
}

static int check_threads(tern_error *err)
{
    char name[32];
    int status = other_thread(name, sizeof(name), err);
    if (status || !*name) return status;
    return tern__error_set(
        err, func, TERN_E_STATE,
        "this process has another thread (\"%s\"), which forked ranks would not have but might wait "
        "for: spawn before a group of several ranks is open and before a kernel has run on "
        "several threads",
        name);
}

static int check_no_rank(tern_error *err)
{
    const char *name = getenv("RANK") ? "RANK" : "WORLD_SIZE", *value = getenv(name);
    if (!value) return TERN_OK;
    return tern__error_set(
        err, func, TERN_E_STATE,
        "%s=\"%s\": this process is a rank already, started by tern run or tern_spawn, and "
        "cannot start ranks of its own",
        name, value);
}

/* If the parent ignores SIGCHLD, the kernel reaps its children and their exit statuses are lost. */
static int check_sigchld(tern_error *err)
{
    struct sigaction now;
    if (sigaction(SIGCHLD, NULL, &now))
        return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot read the action of SIGCHLD");
    if (now.sa_handler != SIG_IGN && !(now.sa_flags & SA_NOCLDWAIT)) return TERN_OK;
    return tern__error_set(err, func, TERN_E_STATE,
                           "this process ignores SIGCHLD, so the ranks' exit statuses would be lost");
}

static int check(rank_fn *fn, int n, const tern_spawn_opts *opts, tern_error *err)
{
    if (!fn) return tern__error_set(err, func, TERN_E_INVALID, "fn: expected a function, got NULL");
    if (n < 1 || n > TERN__LAUNCH_RANKS)
        return tern__error_set(err, func, TERN_E_RANGE, "n: expected 1 to %d ranks, got %d",
                               TERN__LAUNCH_RANKS, n);
    if (!(opts->grace_s >= 0))
        return tern__error_set(err, func, TERN_E_RANGE, "grace_s: expected seconds from 0, got %g",
                               opts->grace_s);
    int status = check_no_rank(err);
    if (!status) status = check_threads(err);
    return status ? status : check_sigchld(err);
}

/* ---- starting ---- */

/* OpenMP may have bound the parent's only thread to its first place, which all ranks would inherit. */
static void leave_place(void)
{
    cpu_set_t cores;
    if (tern__cores_get(&cores) == 0) sched_setaffinity(0, sizeof(cores), &cores);
}

static _Noreturn void be_rank(const spawner *s, int rank, rank_fn *fn, void *ctx, pid_t parent)
{
    if (tern__launch_enter(&s->launch, rank, parent)) {
        fprintf(stderr, "tern: %s: rank %d cannot start: %s\n", func, rank, strerror(errno));
        _exit(127);
    }
    leave_place();
    int status = fn(rank, ctx);
    fflush(NULL);
    _exit(status < 0 || status > 255 ? 255 : status);
}

static int watch_rank(spawner *s, int rank, tern_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)rank};
    s->pidfds[rank] = (int)syscall(SYS_pidfd_open, s->pids[rank], 0);
    s->polls |= s->pidfds[rank] < 0 && (errno == ENOSYS || errno == EPERM);
    if (s->polls) return TERN_OK;
    if (s->pidfds[rank] >= 0 && epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->pidfds[rank], &event) == 0)
        return TERN_OK;
    return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot watch rank %d (pid %d)", rank,
                             (int)s->pids[rank]);
}

/* Called after the last fork, so that no rank inherits these descriptors. */
static int watch_ranks(spawner *s, tern_error *err)
{
    int status = TERN_OK;
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot watch the ranks");
    for (int i = 0; !status && i < s->launch.ranks; i++) status = watch_rank(s, i, err);
    return status;
}

/* Flushes stdio first: otherwise every child would write the buffered output again. */
static int start(spawner *s, rank_fn *fn, void *ctx, tern_error *err)
{
    pid_t parent = getpid();
    fflush(NULL);
    for (int i = 0; i < s->launch.ranks; i++) {
        pid_t pid = fork();
        if (pid == 0) be_rank(s, i, fn, ctx, parent);
        if (pid < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot start rank %d", i);
        s->pids[i] = pid;
        s->alive++;
    }
    tern__close(&s->launch.listen_fd);
    return watch_ranks(s, err);
}

/* ---- waiting ---- */

/* Sends SIGCONT too, because a stopped process handles no signal but SIGKILL. */
static void signal_ranks(spawner *s, int number)
{
    for (int i = 0; i < s->launch.ranks; i++) {
        if (!s->pids[i]) continue;
        kill(s->pids[i], number);
        kill(s->pids[i], SIGCONT);
    }
}

static void end_ranks(spawner *s)
{
    if (s->was_ended) return;
    s->was_ended = true;
    s->deadline = tern__deadline(s->grace_s);
    signal_ranks(s, SIGTERM);
}

static void kill_ranks(spawner *s)
{
    s->deadline = INT64_MAX;
    signal_ranks(s, SIGKILL);
}

typedef struct end {
    int rank;
    pid_t pid;
    int status; /* waitpid's */
} end;

static void fail(const end *e, tern_error *err)
{
    char text[128];
    if (err->code) return;
    tern__launch_describe(e->rank, e->pid, e->status, text, sizeof(text));
    tern__error_set(err, func, TERN_E_PEER, "%s", text);
    err->native = tern__launch_exit_code(e->status);
}

static void wait_for(spawner *s, int rank, int options, tern_error *err)
{
    end e = {.rank = rank, .pid = s->pids[rank]};
    pid_t ended = waitpid(e.pid, &e.status, options);
    if (!ended) return;
    if (ended < 0)
        tern__error_errno(err, func, TERN_E_SYSTEM, "cannot wait for rank %d (pid %d)", rank, (int)e.pid);
    tern__close(&s->pidfds[rank]);
    s->pids[rank] = 0;
    s->alive--;
    if (e.status) fail(&e, err);
}

static void reap(spawner *s, tern_error *err)
{
    struct epoll_event event;
    while (epoll_wait(s->epoll_fd, &event, 1, 0) == 1) wait_for(s, (int)event.data.u32, 0, err);
    for (int i = 0; s->polls && i < s->launch.ranks; i++)
        if (s->pids[i]) wait_for(s, i, WNOHANG, err);
    if (err->code) end_ranks(s);
}

static int watch(spawner *s, tern_error *err)
{
    const double poll_s = 0.01;
    while (s->alive) {
        struct pollfd ended = {.fd = s->epoll_fd, .events = POLLIN};
        int64_t until = s->polls ? TERN__MIN(s->deadline, tern__deadline(poll_s)) : s->deadline;
        if (tern__poll(&ended, 1, until) < 0)
            return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot wait for the ranks");
        reap(s, err);
        if (tern__now_ns() >= s->deadline) kill_ranks(s);
    }
    return TERN_OK;
}

/* Kills and reaps the remaining ranks, after an error of this process. */
static void abandon(const spawner *s)
{
    for (int i = 0; i < s->launch.ranks; i++) {
        if (!s->pids[i]) continue;
        kill(s->pids[i], SIGKILL);
        while (waitpid(s->pids[i], NULL, 0) < 0 && errno == EINTR) continue;
    }
}

/* ---- tern_spawn ---- */

static int spawner_open(spawner *s, int n, double grace_s, tern_error *err)
{
    *s =
        (spawner){.launch = tern__launch_local(n), .epoll_fd = -1, .deadline = INT64_MAX, .grace_s = grace_s};
    s->pids = tern__alloc((size_t)n * sizeof(*s->pids), func, err);
    s->pidfds = tern__alloc((size_t)n * sizeof(*s->pidfds), func, err);
    for (int i = 0; s->pidfds && i < n; i++) s->pidfds[i] = -1;
    tern_error inner = {0};
    if (err->code || !tern__launch_open(&s->launch, &inner)) return err->code;
    return tern__error_set(err, func, inner.code, "%s", inner.text);
}

static void spawner_close(spawner *s)
{
    for (int i = 0; s->pidfds && i < s->launch.ranks; i++) tern__close(&s->pidfds[i]);
    tern__close(&s->epoll_fd);
    tern__launch_close(&s->launch);
    tern__free(s->pidfds);
    tern__free(s->pids);
}

static void spawn(rank_fn *fn, int n, void *ctx, double grace_s, tern_error *err)
{
    spawner s;
    if (!spawner_open(&s, n, grace_s, err) && (start(&s, fn, ctx, err) || watch(&s, err))) abandon(&s);
    spawner_close(&s);
}

tern_spawn_opts tern_spawn_defaults(void)
{
    return (tern_spawn_opts){.size = sizeof(tern_spawn_opts), .grace_s = 5};
}

int tern_spawn(int (*fn)(int rank, void *ctx), int n, void *ctx, const tern_spawn_opts *opts, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    tern_error own = {0};
    tern_spawn_opts set = tern_spawn_defaults();
    if (!tern__opts_read(&set, sizeof(set), opts, func, &own) && !check(fn, n, &set, &own))
        spawn(fn, n, ctx, set.grace_s, &own);
    if (own.code && err) *err = own;
    return own.code;
}
