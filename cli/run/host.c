/* host.c - the ranks of this host as child processes. The kernel keeps their deaths in order: a pidfd joins
 * the ready list of its epoll when its process ends, and the list is first in, first out. */
#include "run/host.h"

#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES_OF_LAUNCHER 64
#define FILES_OF_RANK     5
#define SWEEP_SECONDS     0.5 /* for processes that take time to die of SIGKILL */

/* ---- starting ---- */

static int start_rank(tern__local_host *host, int local, tern__relay *relay, tern_error *err)
{
    tern__cli_output outputs[2];
    tern__rank *rank = &host->ranks[local];
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = (uint32_t)local};
    tern__rank_close(rank);
    int status = tern__logs_plan(host->start.logs, local, outputs, err);
    if (!status) status = tern__rank_start(&host->start, local, outputs, rank, err);
    host->alive += !rank->gone;
    if (!rank->gone && host->start.job->launch.first + local == 0)
        tern__terminal_begin(&host->terminal, rank->pid);
    if (status) return status;
    tern__relay_add(relay, local, outputs);
    if (rank->polled || epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, rank->pid_fd, &event) == 0) return TERN_OK;
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot watch a rank");
}

int tern__host_start(tern__local_host *host, tern__relay *relay, tern_error *err)
{
    host->sent = 0;
    tern__presence_reset(&host->presence);
    host->start.cores_are_short = tern__cores_are_short(&host->start.job->launch);
    for (int i = 0; i < host->count; i++) {
        int status = start_rank(host, i, relay, err);
        if (status) return status;
    }
    return TERN_OK;
}

/* ---- deaths ---- */

/* Returns the errno of a rank that could not run the program. The pipe may hold the reports of other ranks
 * first; any of them will do, since all ranks run the same program. */
static int read_reason(tern__local_host *host)
{
    int report[2];
    return read(host->report[0], report, sizeof(report)) == sizeof(report) ? report[0] : 0;
}

static void check_group(tern__local_host *host, tern__rank *rank)
{
    if (!rank->gone || rank->is_group_gone || !kill(-rank->pid, 0) || errno != ESRCH) return;
    rank->is_group_gone = true;
    tern__guard_remove(&host->guard, rank->pid);
}

/* Reaps a dead rank. Returns false if it lives, or if a debugger traces it, which must wait for it first. */
static bool reap_rank(tern__local_host *host, int local, tern__death *death)
{
    tern__rank *rank = &host->ranks[local];
    *death = (tern__death){.local = local};
    rank->polled = true;
    if (rank->gone || waitpid(rank->pid, &death->status, WNOHANG) != rank->pid) return false;
    /* Closing the pidfd is not enough: a rank that has just been forked still holds a copy. */
    epoll_ctl(host->epoll_fd, EPOLL_CTL_DEL, rank->pid_fd, NULL);
    tern__close(&rank->pid_fd);
    rank->gone = true;
    host->alive--;
    if (rank->pid == host->terminal.group) tern__terminal_end(&host->terminal);
    check_group(host, rank);
    if (death->status) death->reason = read_reason(host);
    return true;
}

bool tern__host_reap(tern__local_host *host, tern__death *death)
{
    struct epoll_event event;
    while (epoll_wait(host->epoll_fd, &event, 1, 0) == 1)
        if (reap_rank(host, (int)event.data.u32, death)) return true;
    for (int i = 0; i < host->count; i++)
        if (host->ranks[i].polled && !host->ranks[i].gone && reap_rank(host, i, death)) return true;
    return false;
}

static bool is_rank(const tern__local_host *host, pid_t pid)
{
    for (int i = 0; i < host->count; i++)
        if (!host->ranks[i].gone && host->ranks[i].pid == pid) return true;
    return false;
}

/* Stops at a dead rank: tern__host_reap takes it in the next turn of the loop. */
void tern__host_reap_strangers(tern__local_host *host)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid) break;
        if (is_rank(host, info.si_pid) || waitpid(info.si_pid, NULL, WNOHANG) < 0) break;
        if (info.si_pid == host->guard.pid) host->guard.pid = 0; /* somebody has killed it */
        if (info.si_pid == host->terminal.watcher) host->terminal.watcher = 0;
    }
    for (int i = 0; i < host->count; i++) check_group(host, &host->ranks[i]);
}

void tern__host_leave(tern__local_host *host, int local)
{
    tern__rank *rank = &host->ranks[local];
    host->alive -= !rank->gone;
    rank->gone = rank->is_group_gone = true;
}

bool tern__host_has_left(const tern__local_host *host)
{
    for (int i = 0; i < host->count; i++)
        if (host->ranks[i].gone && !host->ranks[i].is_group_gone) return true;
    return false;
}

bool tern__host_has_ended(const tern__local_host *host)
{
    return host->alive == 0 && !(host->sent && tern__host_has_left(host));
}

/* ---- signals ---- */

/* A rank that has just been forked may not lead its group yet. */
static void signal_group(const tern__rank *rank, int number)
{
    if (rank->is_group_gone) return;
    if (kill(-rank->pid, number) && errno == ESRCH && !rank->gone) kill(rank->pid, number);
}

void tern__host_pass(const tern__local_host *host, int number, bool is_key)
{
    for (int i = 0; i < host->count; i++)
        if (!is_key || host->ranks[i].pid != host->terminal.group) signal_group(&host->ranks[i], number);
}

void tern__host_end(tern__local_host *host, int number, bool is_key)
{
    host->sent = number;
    tern__host_pass(host, number, is_key);
    tern__host_pass(host, SIGCONT, false);
}

typedef int visit_fn(const tern__local_host *host, pid_t child);

/* Calls `visit` for all children and returns the sum of its results. */
static int visit_children(const tern__local_host *host, visit_fn *visit)
{
    char path[64];
    int pid, sum = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *children = fopen(path, "re");
    while (children && fscanf(children, "%d", &pid) == 1) sum += visit(host, pid);
    if (children) fclose(children);
    return sum;
}

static int count_child(const tern__local_host *host, pid_t child)
{
    (void)host;
    return child > 0;
}

static int kill_stranger(const tern__local_host *host, pid_t child)
{
    if (is_rank(host, child) || child == host->guard.pid) return false;
    return kill(child, SIGKILL) == 0;
}

/* Works in rounds, since this process becomes the parent of the children of those that it kills. */
void tern__host_sweep(tern__local_host *host)
{
    for (int64_t end = tern__deadline(SWEEP_SECONDS); host->sweeps && tern__now_ns() < end;) {
        tern__host_reap_strangers(host);
        if (!visit_children(host, kill_stranger)) return;
        tern__poll(NULL, 0, tern__deadline(0.001));
    }
}

/* Ranks that are gone count as strangers, so the sweep also awaits the ranks and gets what they leave
 * behind. */
void tern__host_kill(tern__local_host *host)
{
    tern__host_pass(host, SIGKILL, false);
    for (int i = 0; i < host->count; i++) host->ranks[i].gone = true;
    tern__terminal_end(&host->terminal);
    tern__host_sweep(host);
}

/* ---- open and close ---- */

/* Raises the limit of descriptors. A rank takes two pipes, a pidfd, and an error file or two logs. */
static int raise_files(tern__local_host *host, tern_error *err)
{
    struct rlimit *given = &host->start.files, wanted;
    rlim_t need = FILES_OF_LAUNCHER + FILES_OF_RANK * (rlim_t)host->count;
    if (getrlimit(RLIMIT_NOFILE, given))
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot read the limit of descriptors");
    if (given->rlim_cur >= need) return TERN_OK;
    wanted = (struct rlimit){.rlim_cur = need, .rlim_max = given->rlim_max};
    if (given->rlim_max >= need && setrlimit(RLIMIT_NOFILE, &wanted) == 0) return TERN_OK;
    return tern__error_set(
        err, __func__, TERN_E_SYSTEM,
        "%d ranks need about %llu file descriptors here, but at most %llu are allowed (ulimit -Hn)",
        host->count, (unsigned long long)need, (unsigned long long)given->rlim_max);
}

int tern__host_adopt(tern__local_host *host, const tern__start *start, tern_error *err)
{
    int ranks = start->job->launch.ranks;
    *host = (tern__local_host){.start = *start,
                               .epoll_fd = -1,
                               .report = {-1, -1},
                               .guard.fd = -1,
                               .terminal.fd = -1,
                               .presence.fd = -1};
    host->start.guard = &host->guard;
    host->start.terminal = &host->terminal;
    host->start.presence = &host->presence;
    host->ranks = tern__alloc((size_t)ranks * sizeof(*host->ranks), __func__, err);
    if (!host->ranks) return TERN_E_MEMORY;
    for (int i = 0; i < ranks; i++)
        host->ranks[i] = (tern__rank){.gone = true, .is_group_gone = true, .pid_fd = -1, .error_fd = -1};
    host->count = ranks;
    int status = raise_files(host, err);
    if (status) return status;
    host->sweeps = !visit_children(host, count_child);
    if (tern__guard_open(&host->guard, ranks, err) || tern__presence_open(&host->presence, ranks, err))
        return err->code;
    tern__terminal_open(&host->terminal);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    host->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (host->epoll_fd >= 0 && pipe2(host->report, O_CLOEXEC | O_NONBLOCK) == 0) {
        host->start.report_fd = host->report[1];
        return TERN_OK;
    }
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot watch over ranks");
}

void tern__host_free(tern__local_host *host)
{
    for (int i = 0; i < host->count; i++) tern__rank_close(&host->ranks[i]);
    tern__terminal_close(&host->terminal);
    tern__guard_close(&host->guard);
    tern__presence_close(&host->presence);
    tern__close(&host->epoll_fd);
    tern__close(&host->report[0]);
    tern__close(&host->report[1]);
    tern__free(host->ranks);
}
