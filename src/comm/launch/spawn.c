/* spawn.c - tern_spawn: forks ranks and waits for them.
 *
 * One epoll waits for all ranks, on their pidfds, which become readable when a rank ends. This needs no
 * SIGCHLD handler and reaps no other child of the caller. epoll reports the ranks in the order in which they
 * ended, so the first failed one is the cause and later failures are its consequences. Where there are no
 * pidfds (before Linux 5.3, or under an old filter of system calls), it asks for each rank every 10 ms. There
 * is no deadline until a rank fails; then the others get SIGTERM, and SIGKILL after the grace time. A rank
 * that SIGKILL cannot end (a frozen control group, a dead file system) is left behind.
 *
 * SIGCHLD is blocked meanwhile: a handler of the caller that reaps every child would take the ranks' exit
 * statuses. Of the first process of a container, PID 1, the kernel expects more. It drops a signal that would
 * end this process, so the ranks get it; and it makes this process the parent of orphans, which are reaped
 * unless they were children before. */
#include <tern/spawn.h>

#include "base/cores.h"
#include "base/opts.h"
#include "base/text.h"
#include "comm/launch/launch.h"
#include "comm/launch/presence.h"
#include "comm/sys.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char func[] = "tern_spawn";

typedef int rank_fn(int rank, void *ctx);

typedef struct end {
    int rank;
    pid_t pid;
    int status; /* waitpid's */
} end;

typedef struct spawner {
    tern__launch launch;
    pid_t *pids;  /* 0: not started, or already reaped */
    int *pidfds;  /* -1: the same, or there are no pidfds */
    int epoll_fd; /* readable when a rank has ended */
    int alive;
    bool polls;      /* there are no pidfds */
    bool was_ended;  /* the remaining ranks got SIGTERM, or PID 1's signal */
    bool was_killed; /* they got SIGKILL */
    int64_t deadline;
    double grace_s;
    tern__presence presence;
    int leaver; /* the first rank that exited with 0 and left a group open; -1 */
    pid_t leaver_pid;
    end by_peer;     /* the first rank that stopped because of another; its pid is 0: there is none */
    sigset_t mask;   /* the caller's */
    int signal_fd;   /* -1 unless this is PID 1 */
    pid_t *children; /* PID 1's, before the ranks; NULL: unknown */
    int child_count;
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

static int check_spawn(rank_fn *fn, int n, const tern_spawn_opts *opts, tern_error *err)
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

/* ---- signals and orphans ---- */

/* Reads the next child of this process's only thread; 0: there is none. */
static pid_t next_child(FILE *children)
{
    int pid;
    return children && fscanf(children, "%d", &pid) == 1 ? pid : 0;
}

static bool is_orphan(const spawner *s, pid_t child)
{
    for (int i = 0; i < s->launch.ranks; i++)
        if (s->pids[i] == child) return false;
    for (int i = 0; i < s->child_count; i++)
        if (s->children[i] == child) return false;
    return true;
}

/* The kernel's list may lack a child while another one ends, so the caller looks again from time to time. */
static void reap_orphans(const spawner *s)
{
    FILE *children = s->children ? fopen("/proc/thread-self/children", "re") : NULL;
    for (pid_t child; (child = next_child(children));)
        if (is_orphan(s, child)) waitpid(child, NULL, WNOHANG);
    if (children) fclose(children);
}

/* Notes the children of PID 1, which it may wait for itself. */
static int note_children(spawner *s, tern_error *err)
{
    FILE *children = fopen("/proc/thread-self/children", "re");
    if (!children) return TERN_OK;
    while (next_child(children)) s->child_count++;
    rewind(children);
    s->children = tern__alloc((size_t)(s->child_count + 1) * sizeof(*s->children), func, err);
    for (int i = 0; s->children && i < s->child_count; i++) s->children[i] = next_child(children);
    fclose(children);
    return s->children ? TERN_OK : TERN_E_MEMORY;
}

/* Adds the signals that the kernel drops for PID 1 because it has no handler. */
static void add_dropped(sigset_t *signals)
{
    static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    for (size_t i = 0; i < TERN__COUNT(ending); i++) {
        struct sigaction now;
        if (!sigaction(ending[i], NULL, &now) && now.sa_handler == SIG_DFL) sigaddset(signals, ending[i]);
    }
}

static int take_signals(spawner *s, tern_error *err)
{
    sigset_t signals;
    bool is_first = getpid() == 1;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    if (is_first) add_dropped(&signals);
    if (sigprocmask(SIG_BLOCK, &signals, &s->mask))
        return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot block SIGCHLD");
    if (!is_first) return TERN_OK;
    s->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot watch for signals");
    return note_children(s, err);
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
    if (tern__launch_enter(&s->launch, rank, parent) || tern__presence_enter(&s->presence, parent)) {
        fprintf(stderr, "tern: %s: rank %d cannot start: %s\n", func, rank, strerror(errno));
        _exit(127);
    }
    leave_place();
    if (s->signal_fd >= 0) close(s->signal_fd);
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
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
static int start_ranks(spawner *s, rank_fn *fn, void *ctx, tern_error *err)
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

static const double killed_s = 2; /* for a rank to die of SIGKILL */
static const double cause_s = 1;  /* for a rank to end after those that stopped because of it */

/* Sends SIGCONT too, because a stopped process handles no signal but SIGKILL. */
static void signal_ranks(spawner *s, int number)
{
    for (int i = 0; i < s->launch.ranks; i++) {
        if (!s->pids[i]) continue;
        kill(s->pids[i], number);
        kill(s->pids[i], SIGCONT);
    }
}

static void end_ranks(spawner *s, int number)
{
    if (s->was_ended) return;
    s->was_ended = true;
    s->deadline = tern__deadline(s->grace_s);
    signal_ranks(s, number);
}

static void kill_ranks(spawner *s)
{
    s->was_killed = true;
    s->deadline = tern__deadline(killed_s);
    signal_ranks(s, SIGKILL);
}

/* If a rank has exited with 0 and left its group open, or has never begun to open the one of the rank that
 * fails, it is the cause. */
static void spawner_fail(const spawner *s, const end *e, tern_error *err)
{
    char text[128], cause[128] = "";
    if (err->code) return;
    tern__launch_describe(e->rank, e->pid, e->status, text, sizeof(text));
    for (int i = 0; i < s->launch.ranks && s->leaver < 0; i++)
        if (!s->pids[i] && tern__presence_lacks(&s->presence, i, e->rank))
            snprintf(cause, sizeof(cause), "rank %d exited with code 0 before tern_group_open; ", i);
    if (s->leaver >= 0)
        snprintf(cause, sizeof(cause), "rank %d (pid %d) exited with code 0 without tern_group_close; ",
                 s->leaver, (int)s->leaver_pid);
    tern__error_set(err, func, TERN_E_PEER, "%s%s", cause, text);
    err->native = tern__launch_exit_code(e->status);
}

/* A rank that stopped because of another one may end first, so that one is waited for, for a moment. */
static void spawner_note_failure(spawner *s, const end *e, tern_error *err)
{
    if (s->was_ended || !tern__presence_failed_by_peer(&s->presence, e->rank)) {
        spawner_fail(s, e, err);
    } else if (!s->by_peer.pid) {
        s->by_peer = *e;
        s->deadline = TERN__MIN(s->deadline, tern__deadline(cause_s));
    }
}

/* Fails because of the rank that stopped, once its cause has had time to end. */
static void check_cause(const spawner *s, tern_error *err)
{
    bool is_over = !s->alive || s->leaver >= 0 || tern__now_ns() >= s->deadline;
    if (s->by_peer.pid && is_over) spawner_fail(s, &s->by_peer, err);
}

static void wait_children(spawner *s, int rank, int options, tern_error *err)
{
    end e = {.rank = rank, .pid = s->pids[rank]};
    pid_t ended = waitpid(e.pid, &e.status, options);
    if (!ended) return;
    if (ended < 0)
        tern__error_errno(err, func, TERN_E_SYSTEM, "cannot wait for rank %d (pid %d)", rank, (int)e.pid);
    tern__close(&s->pidfds[rank]);
    s->pids[rank] = 0;
    s->alive--;
    if (e.status) spawner_note_failure(s, &e, err);
    if (e.status || s->leaver >= 0 || !tern__presence_is_open(&s->presence, rank) ||
        tern__presence_failed_by_peer(&s->presence, rank))
        return;
    s->leaver = rank;
    s->leaver_pid = e.pid;
}

/* Ranks cannot meet if one has exited with 0 and never begun to open the group. */
static void check_absent(const spawner *s, tern_error *err)
{
    for (int i = 0; i < s->launch.ranks && !err->code; i++) {
        int waiter =
            s->pids[i] ? -1 : tern__presence_waiter(&s->presence, tern__presence_begun(&s->presence, i));
        if (waiter < 0 || !s->pids[waiter]) continue;
        tern__error_set(err, func, TERN_E_PEER,
                        "rank %d exited with code 0 before tern_group_open, in which rank %d waits for it", i,
                        waiter);
        err->native = 1;
    }
}

static void reap_ranks(spawner *s, tern_error *err)
{
    struct epoll_event event;
    while (epoll_wait(s->epoll_fd, &event, 1, 0) == 1) wait_children(s, (int)event.data.u32, 0, err);
    for (int i = 0; s->polls && i < s->launch.ranks; i++)
        if (s->pids[i]) wait_children(s, i, WNOHANG, err);
    if (s->alive < s->launch.ranks) check_absent(s, err);
    check_cause(s, err);
    if (err->code) end_ranks(s, SIGTERM);
}

/* PID 1 passes on a signal; a second one kills the ranks. */
static void pass_signals(spawner *s)
{
    struct signalfd_siginfo info;
    while (s->signal_fd >= 0 && read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (s->was_ended)
            kill_ranks(s);
        else
            end_ranks(s, (int)info.ssi_signo);
    }
}

/* Adds the ranks that have survived SIGKILL to the error, and waits for them no more. */
static void leave_ranks(spawner *s, tern_error *err)
{
    char before[TERN_ERROR_TEXT], left[256] = "";
    for (int i = 0; i < s->launch.ranks; i++) {
        if (!s->pids[i]) continue;
        tern__text_append(left, sizeof(left), "; rank %d (pid %d) survived SIGKILL and is left behind", i,
                          (int)s->pids[i]);
        s->pids[i] = 0;
    }
    s->alive = 0;
    snprintf(before, sizeof(before), "%s", err->code ? err->text : "the ranks were told to end");
    int native = err->code ? err->native : 128 + SIGKILL;
    err->code = TERN_OK;
    tern__error_set(err, func, TERN_E_PEER, "%s%s", before, left);
    err->native = native;
}

static int supervise_ranks(spawner *s, tern_error *err)
{
    const double poll_s = 0.01, look_s = 1;
    while (s->alive) {
        struct pollfd ready[] = {{.fd = s->epoll_fd, .events = POLLIN},
                                 {.fd = s->signal_fd, .events = POLLIN}};
        int64_t until = s->deadline;
        if (s->polls || s->alive < s->launch.ranks || s->children)
            until = TERN__MIN(until, tern__deadline(s->polls ? poll_s : look_s));
        if (tern__poll(ready, TERN__COUNT(ready), until) < 0)
            return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot wait for the ranks");
        reap_ranks(s, err);
        pass_signals(s);
        reap_orphans(s);
        if (!s->alive || !s->was_ended || tern__now_ns() < s->deadline) continue;
        if (s->was_killed)
            leave_ranks(s, err);
        else
            kill_ranks(s);
    }
    return TERN_OK;
}

/* Kills and reaps the remaining ranks, after an error of this process. */
static void abandon_ranks(const spawner *s)
{
    for (int i = 0; i < s->launch.ranks; i++)
        if (s->pids[i]) kill(s->pids[i], SIGKILL);
    int64_t deadline = tern__deadline(killed_s);
    for (int i = 0; i < s->launch.ranks; i++)
        while (s->pids[i] && waitpid(s->pids[i], NULL, WNOHANG) == 0 && tern__now_ns() < deadline)
            tern__poll(NULL, 0, tern__deadline(0.001));
}

/* ---- tern_spawn ---- */

static int spawner_open(spawner *s, int n, double grace_s, tern_error *err)
{
    *s = (spawner){.launch = tern__launch_local(n),
                   .epoll_fd = -1,
                   .signal_fd = -1,
                   .presence.fd = -1,
                   .leaver = -1,
                   .deadline = INT64_MAX,
                   .grace_s = grace_s};
    sigprocmask(SIG_SETMASK, NULL, &s->mask);
    s->pids = tern__alloc((size_t)n * sizeof(*s->pids), func, err);
    s->pidfds = tern__alloc((size_t)n * sizeof(*s->pidfds), func, err);
    for (int i = 0; s->pidfds && i < n; i++) s->pidfds[i] = -1;
    tern_error inner = {0};
    if (err->code || take_signals(s, err) || tern__presence_open(&s->presence, n, err) ||
        !tern__launch_open(&s->launch, &inner))
        return err->code;
    return tern__error_set(err, func, inner.code, "%s", inner.text);
}

static void spawner_close(spawner *s)
{
    for (int i = 0; s->pidfds && i < s->launch.ranks; i++) tern__close(&s->pidfds[i]);
    tern__close(&s->epoll_fd);
    tern__close(&s->signal_fd);
    tern__presence_close(&s->presence);
    tern__launch_close(&s->launch);
    tern__free(s->pidfds);
    tern__free(s->pids);
    tern__free(s->children);
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
}

static void spawn_ranks(rank_fn *fn, int n, void *ctx, double grace_s, tern_error *err)
{
    spawner s;
    if (!spawner_open(&s, n, grace_s, err) && (start_ranks(&s, fn, ctx, err) || supervise_ranks(&s, err)))
        abandon_ranks(&s);
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
    if (!tern__opts_read(&set, sizeof(set), opts, func, &own) && !check_spawn(fn, n, &set, &own))
        spawn_ranks(fn, n, ctx, set.grace_s, &own);
    if (own.code && err) *err = own;
    return own.code;
}
