/* supervise.c - the main loop of `tern run`. One poll waits for everything: a signalfd (SIGCHLD and the
 * signals that end a job), the ranks' deaths and pipes, the launchers of other hosts and the launcher's own
 * output.
 *
 * An attempt runs through phases. Each is entered at most once, and ends when all ranks of this host are gone
 * or at its deadline:
 *
 *   RUNNING    until a rank of any host fails or a signal arrives
 *   REPORTING  1 s after a failure, in which the surviving ranks can print what they saw, and a rank whose
 *              error has ended others can end after them
 *   STOPPING   SIGTERM, or the user's signal, was sent; ranks have the grace period to end
 *   KILLING    SIGKILL was sent; a rank that survives even this (a dead file system) is reported and left
 *              behind
 *   AWAITING   this host's ranks are gone; those of other hosts may not be
 *   OVER       all is decided; remaining output is still passed on
 *
 * When all ranks of all hosts are gone, node 0 decides: another attempt, or the end. */
#include "run/supervise.h"

#include "cli.h"
#include "run/host.h"
#include "run/nodes.h"
#include "run/report.h"
#include "run/signals.h"

#include "base/text.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPORT_SECONDS       1.0
#define GRACE_AFTER_FAILURE  5.0
#define GRACE_AFTER_SIGNAL   30.0 /* enough to write a checkpoint; Slurm and torchrun wait as long */
#define SECONDS_TO_BE_KILLED 2.0
#define LOOK_SECONDS         0.05
#define ABSENT_SECONDS       1.0
#define SECONDS_FOR_OTHERS   5.0 /* beyond the grace period, for other hosts to end */

typedef enum phase { RUNNING, REPORTING, STOPPING, KILLING, AWAITING, OVER, GIVEN_UP } phase;

typedef struct supervisor {
    tern__job *job;
    tern__nodes *nodes;
    tern__logs logs;
    tern__binding binding;
    tern__local_host host;
    tern__relay *relay;
    tern__report report;
    struct pollfd *polls;
    nfds_t poll_count;
    sigset_t mask_before;
    int signal_fd;
    phase phase;
    int64_t deadline;    /* of the phase */
    double grace;        /* the period that the ranks had */
    int64_t last_ns;     /* of the last death; each death gets a different time */
    long long oom_kills; /* the count before the ranks started */
    int code;            /* of this host's first failure */
    int final_code;      /* the job's, once it is over */
    bool was_signaled;
    bool has_leaver;
    tern__failure leaver; /* the first rank that exited with 0 and left a group open */
    tern__news absent;    /* of a rank of another host that exited with 0 */
    bool has_lost_node_0;
    bool wants_attempt;
    bool was_named; /* the root cause */
    bool was_reported;
} supervisor;

/* ---- phases ---- */

static void enter_phase(supervisor *s, phase next, double seconds)
{
    s->phase = next;
    s->deadline = seconds > 0 ? tern__deadline(seconds) : INT64_MAX;
}

static void stop_ranks(supervisor *s, int number, bool is_key, double grace)
{
    s->grace = s->job->grace > 0 ? s->job->grace : grace;
    tern__host_end(&s->host, number, is_key);
    enter_phase(s, STOPPING, s->grace);
}

static void kill_ranks(supervisor *s)
{
    tern__host_end(&s->host, SIGKILL, false);
    enter_phase(s, KILLING, SECONDS_TO_BE_KILLED);
}

static void name_survivors(supervisor *s, const char *what)
{
    for (int i = 0; i < s->host.count; i++) {
        const tern__rank *rank = &s->host.ranks[i];
        if (rank->is_group_gone) continue;
        tern__relay_say(s->relay, "tern run: %srank %d (%s %d) %s", rank->gone ? "a process of " : "",
                        s->job->launch.first + i, rank->gone ? "process group" : "pid", (int)rank->pid, what);
    }
}

/* Survivors count as killed by SIGKILL: the job has failed. Their output so far is still passed on. */
static void leave_survivors(supervisor *s)
{
    name_survivors(s, "survived SIGKILL and is left behind");
    for (int i = 0; i < s->host.count; i++) {
        if (!s->host.ranks[i].gone) tern__relay_end(s->relay, i);
        tern__host_leave(&s->host, i);
    }
    if (!s->code) s->code = 128 + SIGKILL;
}

static void name_failure(supervisor *s, const tern__failure *failure)
{
    char text[640];
    tern__failure_describe(failure, s->job->launch.node, text, sizeof(text));
    tern__relay_say(s->relay, "tern run: %s", text);
}

/* Once in an attempt. */
static void name_root(supervisor *s)
{
    const tern__failure *root = tern__report_root(&s->report);
    if (root && !s->was_named) name_failure(s, root);
    s->was_named |= root != NULL;
}

/* After a failure, waits for the other hosts for a limited time only. */
static void await_others(supervisor *s)
{
    double grace = s->grace > 0 ? s->grace : s->job->grace > 0 ? s->job->grace : GRACE_AFTER_FAILURE;
    enter_phase(s, AWAITING, REPORT_SECONDS + grace + SECONDS_TO_BE_KILLED + SECONDS_FOR_OTHERS);
}

static void give_up_others(supervisor *s)
{
    char missing[128];
    tern__nodes_name_missing(s->nodes, missing, sizeof(missing));
    tern__relay_say(s->relay, "tern run: %s did not end in time and is left behind",
                    *missing ? missing : "node 0");
    s->final_code = s->code ? s->code : TERN__EXIT_FAILED;
    enter_phase(s, OVER, 0);
}

static void end_phase(supervisor *s)
{
    switch (s->phase) {
    case REPORTING:
        name_root(s);
        stop_ranks(s, SIGTERM, false, GRACE_AFTER_FAILURE);
        break;
    case STOPPING:
        name_survivors(s, "did not end in time: SIGKILL");
        kill_ranks(s);
        break;
    case KILLING: leave_survivors(s); break;
    case AWAITING: give_up_others(s); break;
    case RUNNING:
    case OVER:
    case GIVEN_UP: break;
    }
}

/* ---- failures ---- */

static tern__failure make_failure(supervisor *s, const tern__death *death)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    s->last_ns = TERN__MAX(tern__now_ns(), s->last_ns + 1);
    tern__failure failure = {.node = s->job->launch.node,
                             .rank = s->job->launch.first + death->local,
                             .local = death->local,
                             .pid = s->host.ranks[death->local].pid,
                             .status = death->status,
                             .by_peer = tern__presence_failed_by_peer(&s->host.presence, death->local),
                             .at_ns = s->last_ns,
                             .wall_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec};
    gethostname(failure.host, sizeof(failure.host) - 1);
    tern__failure_suspect_memory(&failure, s->oom_kills);
    return failure;
}

/* Reads the last lines and the error.json of a dead rank of this host. Called again for the report, since the
 * pipe may hold more than could be read at the rank's death. */
static void read_last_words(supervisor *s, tern__failure *failure)
{
    char path[PATH_MAX];
    bool is_own = failure->node == s->job->launch.node && failure->rank >= 0;
    if (!is_own || failure->local < 0 || failure->local >= s->host.count)
        return; /* the numbers may come from another host */
    size_t bytes;
    const char *tail = tern__relay_tail(s->relay, failure->local, &bytes);
    if (bytes) tern__failure_set_tail(failure, tail, bytes);
    if (!bytes && tern__logs_path(&s->logs, failure->local, "stderr.log", path, sizeof(path)))
        tern__failure_read_tail(failure, path);
    if (tern__logs_path(&s->logs, failure->local, "error.json", path, sizeof(path))) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        tern__failure_read_error(failure, fd);
        tern__close(&fd);
    } else {
        tern__failure_read_error(failure, s->host.ranks[failure->local].error_fd);
    }
    tern__failure_clean(failure);
}

/* Have only ranks failed that stopped because of another one? */
static bool lacks_root(supervisor *s)
{
    const tern__failure *first = tern__report_root(&s->report);
    return first && first->by_peer;
}

/* Names the root cause at once, but gives the peer of a rank that stopped because of it the time to end.
 * Later failures count as consequences until the ranks are told to end; after that they are the launcher's
 * doing and are ignored, unless the root cause is still missing. A failure may arrive when this host's ranks
 * are gone already. */
static void take_failure(supervisor *s, const tern__failure *failure)
{
    bool is_missing = lacks_root(s) && !failure->by_peer;
    if ((s->host.sent && !is_missing) || s->was_signaled || s->phase > AWAITING) return;
    bool is_first = !tern__report_root(&s->report);
    tern__report_add(&s->report, failure);
    if (!lacks_root(s)) name_root(s);
    if (s->phase == RUNNING) enter_phase(s, REPORTING, REPORT_SECONDS);
    if (s->phase == AWAITING && is_first) await_others(s);
}

/* Does it begin as a script or a program of this system does? */
static bool is_program(const char *path)
{
    char head[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t bytes = fd < 0 ? 0 : read(fd, head, sizeof(head));
    tern__close(&fd);
    return (bytes >= 2 && !memcmp(head, "#!", 2)) || (bytes == 4 && !memcmp(head, "\177ELF", 4));
}

/* What was given instead of a program may be a script, a folder, a file of data, or a program of this folder,
 * which the PATH seldom names. Says what to type then. */
static void suggest_program(tern__relay *relay, const char *name, int reason)
{
    struct stat at;
    if ((reason != ENOENT && reason != EACCES) || stat(name, &at)) return;
    char shown[TERN__MESSAGE_MOST];
    bool is_bare = !strchr(name, '/'), may_run = access(name, X_OK) == 0;
    const char *dot = strrchr(name, '.');
    tern__message_format(shown, sizeof(shown), "%s", name);
    if (S_ISDIR(at.st_mode))
        tern__relay_say(relay, "It is a folder. For a program in it: tern run %s%sPROGRAM", shown,
                        name[strlen(name) - 1] == '/' ? "" : "/");
    else if (!S_ISREG(at.st_mode))
        return;
    else if (dot && !strcmp(dot, ".py"))
        tern__relay_say(relay, "A Python program is started by Python: tern run python3 %s", shown);
    else if (may_run && is_bare)
        tern__relay_say(relay, "For the program in this folder: tern run ./%s", shown);
    else if (!may_run && is_program(name))
        tern__relay_say(relay, "It may not be executed yet: chmod +x %s", shown);
    else if (!may_run)
        tern__relay_say(relay, "It is not a program. For a program that reads it: tern run PROGRAM %s",
                        shown);
}

/* The program could not be run. One line says all about it; other hosts learn of it as of any failure. */
static void take_unstarted(supervisor *s, tern__failure *failure, int reason)
{
    if (s->phase != RUNNING) return;
    char program[TERN__QUOTE_TEXT];
    tern__quote(s->job->argv[0], strlen(s->job->argv[0]), program);
    snprintf(failure->error, sizeof(failure->error), "cannot run %s: %s", program, strerror(reason));
    tern__relay_say(s->relay, "tern run: %s", failure->error);
    suggest_program(s->relay, s->job->argv[0], reason);
    tern__nodes_fail(s->nodes, failure);
    enter_phase(s, REPORTING, REPORT_SECONDS);
}

static void report_death(supervisor *s, tern__failure *failure)
{
    read_last_words(s, failure);
    take_failure(s, failure);
    tern__nodes_fail(s->nodes, failure);
}

/* A rank ended after it was told to. If its group has failed by its own error, and so far only those have
 * ended that stopped because of it, it is the root cause all the same. Otherwise reports it only if something
 * else than the signal ended it and it is the first. */
static void take_late(supervisor *s, tern__failure *failure, bool is_first)
{
    bool was_sent = WIFSIGNALED(failure->status) && WTERMSIG(failure->status) == s->host.sent;
    if (lacks_root(s) && tern__presence_failed_itself(&s->host.presence, failure->local))
        report_death(s, failure);
    else if (is_first && !was_sent && !tern__report_root(&s->report))
        name_failure(s, failure);
}

/* A rank has exited with 0. That is a failure only if others need it; until one of them fails, it is kept.
 * One that stopped because of a peer is no cause. */
static void keep_leaver(supervisor *s, const tern__death *death)
{
    s->host.ranks[death->local].has_succeeded = true;
    if (!s->host.sent) {
        tern__failure leaver = make_failure(s, death);
        tern__nodes_leave(s->nodes, &leaver, tern__presence_begun(&s->host.presence, death->local));
    }
    if (s->has_leaver || s->host.sent || !tern__presence_is_open(&s->host.presence, death->local)) return;
    if (tern__presence_failed_by_peer(&s->host.presence, death->local)) return;
    s->has_leaver = true;
    s->leaver = make_failure(s, death);
    snprintf(s->leaver.error, sizeof(s->leaver.error), "without tern_group_close");
}

/* Has a rank of another host exited with 0 in this attempt? */
static bool has_absent(const supervisor *s)
{
    return s->absent.has_failure && s->absent.attempt == s->job->launch.attempt;
}

static void set_leaver(supervisor *s, const tern__failure *leaver, int local)
{
    s->has_leaver = true;
    s->leaver = *leaver;
    snprintf(s->leaver.error, sizeof(s->leaver.error), "before tern_group_open, which rank %d has called",
             s->job->launch.first + local);
}

/* A rank that left its group open and exited with 0 before the first failure is the cause of it, and so is
 * one that never began to open the group of the rank that has failed (`local`; -1: on another host). */
static void blame_leaver(supervisor *s, int local)
{
    for (int i = 0; i < s->host.count && local >= 0 && !s->has_leaver; i++) {
        if (!s->host.ranks[i].has_succeeded || !tern__presence_lacks(&s->host.presence, i, local)) continue;
        tern__failure leaver = make_failure(s, &(tern__death){.local = i});
        set_leaver(s, &leaver, local);
    }
    if (local >= 0 && !s->has_leaver && has_absent(s) &&
        tern__presence_begun(&s->host.presence, local) > s->absent.begun)
        set_leaver(s, &s->absent.failure, local);
    if (!s->has_leaver || (tern__report_root(&s->report) && !lacks_root(s))) return;
    take_failure(s, &s->leaver);
    tern__nodes_fail(s->nodes, &s->leaver);
}

static void fail_absent(supervisor *s, const tern__failure *absent, int waiter)
{
    tern__failure failure = *absent;
    snprintf(failure.error, sizeof(failure.error), "before tern_group_open, in which rank %d waits for it",
             s->job->launch.first + waiter);
    s->code = TERN__EXIT_FAILED;
    take_failure(s, &failure);
    tern__nodes_fail(s->nodes, &failure);
}

/* Returns a living rank that waits in tern_group_open for one that has exited after `begun` calls of it, or
 * -1. */
static int find_waiter(const supervisor *s, int begun)
{
    int waiter = tern__presence_waiter(&s->host.presence, begun);
    return waiter >= 0 && !s->host.ranks[waiter].gone ? waiter : -1;
}

/* Returns the rank of this host that has exited with 0 after the fewest calls of tern_group_open, or -1. */
static int find_absent(const supervisor *s)
{
    int first = -1;
    for (int i = 0; i < s->host.count; i++)
        if (s->host.ranks[i].has_succeeded &&
            (first < 0 || tern__presence_lacks(&s->host.presence, i, first)))
            first = i;
    return first;
}

/* Ranks cannot meet if one, of this host or of another, has exited with 0 and never begun to open the group.
 */
static void check_absent(supervisor *s)
{
    if (s->phase != RUNNING || !s->host.alive) return;
    int local = find_absent(s);
    int waiter = local >= 0 ? find_waiter(s, tern__presence_begun(&s->host.presence, local)) : -1;
    if (waiter >= 0) {
        tern__failure failure = make_failure(s, &(tern__death){.local = local});
        fail_absent(s, &failure, waiter);
        return;
    }
    waiter = has_absent(s) ? find_waiter(s, s->absent.begun) : -1;
    if (waiter >= 0) fail_absent(s, &s->absent.failure, waiter);
}

static void take_death(supervisor *s, const tern__death *death)
{
    bool is_first = !s->code;
    tern__relay_end(s->relay, death->local);
    if (!death->status) {
        keep_leaver(s, death);
        if (lacks_root(s)) blame_leaver(s, -1);
        return;
    }
    if (is_first) s->code = tern__launch_exit_code(death->status);
    if (!s->host.sent && !death->reason) blame_leaver(s, death->local);
    tern__failure failure = make_failure(s, death);
    if (s->host.sent) {
        take_late(s, &failure, is_first);
    } else if (death->reason) {
        take_unstarted(s, &failure, death->reason);
    } else {
        report_death(s, &failure);
    }
}

static void reap_ranks(supervisor *s)
{
    tern__death death;
    while (tern__host_reap(&s->host, &death)) take_death(s, &death);
    tern__host_reap_strangers(&s->host);
    check_absent(s);
}

/* ---- signals ---- */

static void take_ending_signal(supervisor *s, int number, bool is_key)
{
    s->was_signaled = true;
    if (tern__host_has_ended(&s->host)) {
        if (s->phase != OVER || s->wants_attempt) s->final_code = s->code ? s->code : 128 + number;
        s->wants_attempt = false;
        enter_phase(s, GIVEN_UP, 0);
        return;
    }
    bool kills = s->phase >= STOPPING;
    tern__nodes_signal(s->nodes, number, kills);
    if (kills) {
        if (number == SIGINT && !s->code) s->code = 128 + SIGINT; /* as shells expect of Ctrl-C */
        kill_ranks(s);
        return;
    }
    char name[TERN__SIGNAL_TEXT];
    tern__relay_say(s->relay, "tern run: %s: passed on to the ranks; a second one kills them",
                    tern__signal_text(number, name));
    stop_ranks(s, number, is_key, GRACE_AFTER_SIGNAL);
}

/* fg and bg send SIGCONT; after fg tern run has the terminal, and rank 0 gets it again. */
static void continue_ranks(supervisor *s)
{
    tern__terminal_give(&s->host.terminal);
    tern__host_pass(&s->host, SIGCONT, false);
}

/* Stops the ranks and then this process, by SIGTSTP (Ctrl-Z) or SIGTTIN, and continues them when it goes on.
 * Time in which all are stopped counts towards no deadline. */
static void stop_job(supervisor *s, int number, bool is_key)
{
    int64_t start = tern__now_ns();
    tern__host_pass(&s->host, SIGTSTP, is_key);
    bool was_stopped = tern__signal_stop_self(number);
    if (s->deadline < INT64_MAX) s->deadline += tern__now_ns() - start;
    if (was_stopped || number == SIGTSTP) {
        continue_ranks(s);
        return;
    }
    tern__host_pass(&s->host, SIGCONT, true);
    tern__relay_say(s->relay, "tern run: rank 0 has stopped: it wants the terminal, which another job has");
}

static void take_signals(supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        int number = (int)info.ssi_signo;
        bool is_key = s->host.terminal.watcher && (pid_t)info.ssi_pid == s->host.terminal.watcher;
        if (tern__signal_is_passed(number)) tern__host_pass(&s->host, number, false);
        if (tern__signal_is_ending(number)) take_ending_signal(s, number, is_key);
        if (number == SIGTSTP) stop_job(s, number, is_key);
        if (number == SIGCONT) continue_ranks(s);
    }
    if (tern__terminal_lacks(&s->host.terminal)) stop_job(s, SIGTTIN, true);
}

/* ---- messages from other hosts ---- */

static void take_foreign_signal(supervisor *s, const tern__news *news)
{
    int number = tern__signal_is_ending(news->signal) ? news->signal : SIGTERM;
    s->was_signaled = true;
    if (tern__host_has_ended(&s->host)) return;
    if (news->kills) {
        kill_ranks(s);
    } else if (s->phase < STOPPING) {
        char name[TERN__SIGNAL_TEXT];
        tern__relay_say(s->relay, "tern run: %s on node %d: passed on to the ranks",
                        tern__signal_text(number, name), news->node);
        stop_ranks(s, number, false, GRACE_AFTER_SIGNAL);
    }
}

static void take_foreign_failure(supervisor *s, const tern__news *news)
{
    bool is_node_0 = news->failure.rank < 0 && news->failure.node == 0;
    s->has_lost_node_0 |= is_node_0 && s->job->launch.node;
    blame_leaver(s, -1);
    take_failure(s, &news->failure);
}

static void take_finish(supervisor *s, const tern__news *news)
{
    if (news->has_failure) tern__report_set_root(&s->report, &news->failure);
    s->final_code = news->code;
    enter_phase(s, OVER, 0);
}

static void take_news(supervisor *s)
{
    tern__news news;
    while (tern__nodes_next(s->nodes, &news)) {
        switch (news.kind) {
        case TERN__NEWS_FAILED: take_foreign_failure(s, &news); break;
        case TERN__NEWS_SIGNAL: take_foreign_signal(s, &news); break;
        case TERN__NEWS_LEFT: s->absent = news; break;
        case TERN__NEWS_FINISHED: take_finish(s, &news); break;
        }
    }
}

/* ---- the end of an attempt ---- */

static void begin_again(supervisor *s)
{
    name_root(s);
    tern__report_restart(&s->report);
    s->wants_attempt = true;
    enter_phase(s, OVER, 0);
}

/* On node 0: once all ranks of all hosts are gone, decides whether to restart or to end. */
static void supervisor_decide(supervisor *s)
{
    int others;
    tern__launch *launch = &s->job->launch;
    const tern__failure *root = tern__report_root(&s->report);
    if (!tern__nodes_have_ended(s->nodes, &others)) return;
    bool may_restart = root && !s->was_signaled && tern__nodes_are_all_there(s->nodes);
    if (may_restart && launch->attempt < launch->max_restarts) {
        launch->attempt++;
        begin_again(s);
        return;
    }
    s->final_code = root ? tern__failure_code(root) : s->code ? s->code : others;
    tern__nodes_finish(s->nodes, root, s->final_code);
    enter_phase(s, OVER, 0);
}

static void await_decision(supervisor *s)
{
    if (tern__nodes_have_started(s->nodes)) {
        begin_again(s);
    } else if (s->has_lost_node_0) {
        const tern__failure *root = tern__report_root(&s->report);
        s->final_code = root ? tern__failure_code(root) : s->code ? s->code : TERN__EXIT_FAILED;
        enter_phase(s, OVER, 0);
    }
}

/* Kills processes that the ranks left behind if the job failed; a successful job may have left them on
 * purpose. */
static void end_host(supervisor *s)
{
    bool has_failed = s->code || s->phase >= REPORTING;
    if (has_failed) tern__host_sweep(&s->host);
    tern__nodes_end(s->nodes, s->code);
    if (has_failed)
        await_others(s);
    else
        enter_phase(s, AWAITING, 0);
}

static void print_report(supervisor *s)
{
    tern__failure *root = tern__report_root(&s->report);
    s->was_reported = true;
    if (s->wants_attempt) {
        tern__relay_say(s->relay, "tern run: restarting all ranks, restart %d of %d",
                        s->job->launch.attempt + (s->job->launch.node != 0), s->job->launch.max_restarts);
        return;
    }
    name_root(s);
    if (root) read_last_words(s, root);
    tern__report_print(&s->report, &s->job->launch, s->relay);
}

static void advance_phase(supervisor *s)
{
    if (tern__host_has_ended(&s->host) && s->phase < AWAITING) end_host(s);
    if (s->phase == AWAITING && s->job->launch.node == 0) supervisor_decide(s);
    if (s->phase == AWAITING && s->job->launch.node != 0) await_decision(s);
    if (s->phase == OVER && !s->was_reported && tern__relay_is_drained(s->relay)) print_report(s);
}

/* ---- an attempt ---- */

static bool is_over(const supervisor *s)
{
    return s->phase == GIVEN_UP || (s->phase == OVER && s->was_reported && tern__relay_is_idle(s->relay));
}

/* SIGCHLD tells of the ranks' orphans. Of a process whose parent lives in no rank's group nothing tells, so
 * it is looked for while the job waits for it. Nor does anything tell that a rank begins to wait for one that
 * has exited. */
static int64_t supervisor_poll_deadline(const supervisor *s)
{
    bool awaits_group = s->host.alive == 0 && s->phase < AWAITING && tern__host_has_left(&s->host);
    bool may_lack = s->phase == RUNNING && (s->host.alive < s->host.count || has_absent(s));
    double seconds = awaits_group ? LOOK_SECONDS : ABSENT_SECONDS;
    return awaits_group || may_lack ? TERN__MIN(s->deadline, tern__deadline(seconds)) : s->deadline;
}

/* The poll entries are: signals, deaths, connections to other nodes, the relay. */
static int watch_job(supervisor *s, tern_error *err)
{
    struct pollfd *nodes = s->polls + 2, *relay = nodes + tern__nodes_poll_count(s->nodes);
    for (advance_phase(s); !is_over(s); advance_phase(s)) {
        s->polls[0] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
        s->polls[1] = (struct pollfd){.fd = s->host.epoll_fd, .events = POLLIN};
        tern__nodes_prepare(s->nodes, nodes);
        tern__relay_prepare(s->relay, relay);
        if (tern__poll(s->polls, s->poll_count, supervisor_poll_deadline(s)) < 0)
            return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot wait for the ranks");
        if (s->polls[0].revents) take_signals(s);
        reap_ranks(s);
        tern__nodes_handle(s->nodes, nodes);
        take_news(s);
        tern__relay_handle(s->relay, relay);
        if (tern__now_ns() >= s->deadline) end_phase(s);
    }
    return TERN_OK;
}

static int run_attempt(supervisor *s, tern_error *err)
{
    s->code = 0;
    s->grace = 0;
    s->wants_attempt = s->was_named = s->was_reported = s->has_leaver = false;
    enter_phase(s, RUNNING, 0);
    int status = tern__nodes_start(s->nodes, err);
    s->oom_kills = tern__oom_kills();
    if (!status) status = tern__host_start(&s->host, s->relay, err);
    /* Now only rank 0 has the listening socket: if it dies, its peers are refused instead of left waiting. */
    tern__close(&s->job->launch.listen_fd);
    return status ? status : watch_job(s, err);
}

/* ---- the job ---- */

static void say_logs(const supervisor *s)
{
    if (*s->logs.folder) tern__cli_complain("tern run", "logs in %s", s->logs.folder);
}

static int open_host(supervisor *s, tern_error *err)
{
    tern__start start = {.job = s->job, .logs = &s->logs, .binding = &s->binding, .mask = &s->mask_before};
    int status = tern__logs_open(&s->logs, s->job, err);
    if (!status) status = tern__binding_open(&s->binding, s->job, err);
    if (!status) status = tern__host_adopt(&s->host, &start, err);
    return status;
}

/* Connects to the other hosts first: until signals are taken over, a signal just ends this process. */
static int supervisor_open(supervisor *s, tern_error *err)
{
    tern__signals_enable();
    if (!(s->nodes = tern__nodes_open(s->job, err))) return err->code;
    if (!(s->relay = tern__relay_new(s->job->launch.ranks, err))) return err->code;
    int status = open_host(s, err);
    if (status) return status;
    s->poll_count = 2 + tern__nodes_poll_count(s->nodes) + tern__relay_poll_count(s->relay);
    s->polls = tern__alloc(s->poll_count * sizeof(*s->polls), __func__, err);
    if (!s->polls) return TERN_E_MEMORY;
    s->signal_fd = tern__signals_open(&s->mask_before, err);
    say_logs(s);
    return s->signal_fd < 0 ? s->signal_fd : TERN_OK;
}

static void supervisor_close(supervisor *s)
{
    tern__close(&s->signal_fd);
    tern__host_free(&s->host);
    tern__relay_free(s->relay);
    tern__nodes_close(s->nodes);
    tern__free(s->polls);
}

int tern__job_supervise(tern__job *job, int *code, tern_error *err)
{
    static supervisor s;
    s = (supervisor){
        .job = job, .signal_fd = -1, .report = {.program = job->argv[0], .node = job->launch.node}};
    s.host = (tern__local_host){
        .epoll_fd = -1, .report = {-1, -1}, .guard.fd = -1, .terminal.fd = -1, .presence.fd = -1};
    int status = supervisor_open(&s, err);
    do status = status ? status : run_attempt(&s, err);
    while (!status && s.wants_attempt);
    if (status) tern__host_kill(&s.host);
    *code = s.final_code;
    supervisor_close(&s);
    return status;
}
