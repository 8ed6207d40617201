/* One poll waits for everything: a signalfd (SIGCHLD and the signals that end a job), the ranks' pipes and
 * the launcher's own output. A job runs through at most four phases, each entered once and left when all
 * ranks are gone or at its deadline:
 *
 *   RUNNING    until a rank fails or a signal comes
 *   REPORTING  1 s in which the survivors of a failure say by themselves what they saw
 *   STOPPING   SIGTERM, or the user's signal, was sent; ranks have the grace period to end
 *   KILLING    SIGKILL was sent; a rank that even this does not end (a dead file system) is named and left
 * behind */
#include "supervise.h"

#include "rank.h"
#include "relay.h"

#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPORT_SECONDS       1.0
#define GRACE_AFTER_FAILURE  5.0
#define GRACE_AFTER_SIGNAL   30.0 /* a checkpoint may be written; Slurm and torchrun wait as long */
#define SECONDS_TO_BE_KILLED 2.0

typedef enum phase { RUNNING, REPORTING, STOPPING, KILLING, GIVEN_UP } phase;

typedef struct supervisor {
    tern__job *job;
    tern__rank *ranks;
    int alive;
    tern__relay *relay;
    struct pollfd *polls;
    sigset_t mask_before;
    int signal_fd;
    int report[2]; /* a rank that cannot run the program says why */
    phase phase;
    int64_t deadline; /* of the phase */
    int code;         /* of the first failure */
    int sent;         /* the signal that ends the ranks, once it was sent */
} supervisor;

static const int ending_signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
/* Batch systems warn with them; what they mean is the program's to say. */
static const int passed_signals[] = {SIGUSR1, SIGUSR2};

static const char *signal_name(int number)
{
    const char *name = sigabbrev_np(number);
    return name ? name : "RT";
}

/* ---- phases ---- */

static void enter(supervisor *s, phase next, double seconds)
{
    s->phase = next;
    s->deadline = seconds > 0 ? tern__deadline(seconds) : INT64_MAX;
}

/* SIGCONT, because a stopped process would not see any signal but SIGKILL. */
static void signal_ranks(supervisor *s, int number, bool deliver)
{
    s->sent = number;
    for (int i = 0; i < s->job->launch.ranks; i++) {
        if (s->ranks[i].gone) continue;
        if (deliver) kill(s->ranks[i].pid, number);
        kill(s->ranks[i].pid, SIGCONT);
    }
}

static void stop_ranks(supervisor *s, int number, bool deliver, double grace)
{
    signal_ranks(s, number, deliver);
    enter(s, STOPPING, s->job->grace > 0 ? s->job->grace : grace);
}

static void kill_ranks(supervisor *s)
{
    signal_ranks(s, SIGKILL, true);
    enter(s, KILLING, SECONDS_TO_BE_KILLED);
}

static void name_survivors(supervisor *s, const char *what)
{
    for (int i = 0; i < s->job->launch.ranks; i++)
        if (!s->ranks[i].gone)
            tern__relay_say(s->relay, "tern run: rank %d (pid %d) %s", i, (int)s->ranks[i].pid, what);
}

/* They count as dead of it: the job has not succeeded, and what is said of them is still written. */
static void leave_survivors(supervisor *s)
{
    name_survivors(s, "does not die of SIGKILL and is left behind");
    for (int i = 0; i < s->job->launch.ranks; i++) {
        if (s->ranks[i].gone) continue;
        s->ranks[i].gone = true;
        tern__relay_end(s->relay, i);
    }
    s->alive = 0;
    if (!s->code) s->code = 128 + SIGKILL;
}

static void end_phase(supervisor *s)
{
    switch (s->phase) {
    case REPORTING: stop_ranks(s, SIGTERM, true, GRACE_AFTER_FAILURE); break;
    case STOPPING:
        name_survivors(s, "did not end in time: SIGKILL");
        kill_ranks(s);
        break;
    case KILLING: leave_survivors(s); break;
    case RUNNING:
    case GIVEN_UP: break;
    }
}

/* ---- deaths ---- */

static void name_failure(supervisor *s, int rank, int status)
{
    int reason;
    char text[128];
    tern__launch_describe(rank, s->ranks[rank].pid, status, text, sizeof(text));
    if (read(s->report[0], &reason, sizeof(reason)) == sizeof(reason))
        tern__relay_say(s->relay, "tern run: cannot run \"%s\": %s", s->job->argv[0], strerror(reason));
    else
        tern__relay_say(s->relay, "tern run: %s", text);
}

/* Only the first failure is named: the others are its consequence. */
static void take_failure(supervisor *s, int rank, int status)
{
    bool was_sent = WIFSIGNALED(status) && WTERMSIG(status) == s->sent;
    if (s->code) return;
    s->code = tern__launch_exit_code(status);
    if (!was_sent) name_failure(s, rank, status);
    if (s->phase == RUNNING) enter(s, REPORTING, REPORT_SECONDS);
}

/* Of ranks found dead at the same time, one that a signal killed came before those that exited: a survivor
 * reports with an exit code. */
static void reap(supervisor *s)
{
    int first = -1, first_status = 0;
    for (int i = 0; i < s->job->launch.ranks; i++) {
        int status;
        if (s->ranks[i].gone || waitpid(s->ranks[i].pid, &status, WNOHANG) <= 0) continue;
        s->ranks[i].gone = true;
        s->alive--;
        tern__relay_end(s->relay, i);
        if (!status || (first >= 0 && (WIFSIGNALED(first_status) || !WIFSIGNALED(status)))) continue;
        first = i;
        first_status = status;
    }
    if (first >= 0) take_failure(s, first, first_status);
}

/* ---- signals ---- */

/* What is typed at the terminal (SI_KERNEL) has reached the ranks already: they are in the same process
 * group. A hangup, which the kernel sends too, reaches only the session's leader. */
static bool has_reached_ranks(const struct signalfd_siginfo *info)
{
    return info->ssi_code == SI_KERNEL && info->ssi_signo != SIGHUP;
}

static void take_ending_signal(supervisor *s, const struct signalfd_siginfo *info)
{
    int number = (int)info->ssi_signo;
    if (s->alive == 0) {
        enter(s, GIVEN_UP, 0);
    } else if (s->phase >= STOPPING) {
        kill_ranks(s);
    } else {
        tern__relay_say(s->relay, "tern run: SIG%s: passed on to the ranks; a second one kills them",
                        signal_name(number));
        stop_ranks(s, number, !has_reached_ranks(info), GRACE_AFTER_SIGNAL);
    }
}

static bool is_passed(int number)
{
    return number == passed_signals[0] || number == passed_signals[1];
}

static void pass_signal(supervisor *s, int number)
{
    for (int i = 0; i < s->job->launch.ranks; i++)
        if (!s->ranks[i].gone) kill(s->ranks[i].pid, number);
}

static void take_signals(supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        int number = (int)info.ssi_signo;
        if (is_passed(number)) pass_signal(s, number);
        if (number != SIGCHLD && !is_passed(number)) take_ending_signal(s, &info);
    }
    reap(s);
}

/* An ending signal that is ignored stays so: nohup and a shell's background jobs mean it. SIGPIPE is blocked,
 * so that a reader that went away is an EPIPE. The ranks get the mask from before. */
static int open_signals(supervisor *s, tern_error *err)
{
    sigset_t taken, blocked;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (size_t i = 0; i < TERN__COUNT(passed_signals); i++) sigaddset(&taken, passed_signals[i]);
    for (size_t i = 0; i < TERN__COUNT(ending_signals); i++) {
        struct sigaction now;
        if (sigaction(ending_signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&taken, ending_signals[i]);
    }
    blocked = taken;
    sigaddset(&blocked, SIGPIPE);
    /* A parent that ignored SIGCHLD would leave us children that cannot be waited for. */
    if (sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL) ||
        sigprocmask(SIG_BLOCK, &blocked, &s->mask_before) ||
        (s->signal_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot watch for signals");
    return TERN_OK;
}

/* ---- the job ---- */

static int start_ranks(supervisor *s, tern_error *err)
{
    if (pipe2(s->report, O_CLOEXEC | O_NONBLOCK))
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot make a pipe");
    for (int i = 0; i < s->job->launch.ranks; i++) {
        int status = tern__rank_start(s->job, i, &s->mask_before, s->report[1], &s->ranks[i], err);
        if (status) return status;
        s->alive++;
        tern__relay_add(s->relay, i, s->ranks[i].out_fd, s->ranks[i].err_fd);
    }
    /* Rank 0 alone listens now: were it to die, its peers would be refused instead of kept waiting. */
    tern__close(&s->job->launch.listen_fd);
    return TERN_OK;
}

static bool is_over(const supervisor *s)
{
    return s->phase == GIVEN_UP || (s->alive == 0 && tern__relay_is_idle(s->relay));
}

static int watch(supervisor *s, tern_error *err)
{
    nfds_t count = 1 + tern__relay_poll_count(s->relay);
    while (!is_over(s)) {
        s->polls[0] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
        tern__relay_prepare(s->relay, s->polls + 1);
        if (tern__poll(s->polls, count, s->alive ? s->deadline : INT64_MAX) < 0)
            return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot wait for the ranks");
        if (s->polls[0].revents) take_signals(s);
        tern__relay_handle(s->relay, s->polls + 1);
        if (s->alive && tern__now_ns() >= s->deadline) end_phase(s);
    }
    return TERN_OK;
}

static void abandon_ranks(supervisor *s)
{
    for (int i = 0; s->ranks && i < s->job->launch.ranks; i++)
        if (s->ranks[i].pid > 0 && !s->ranks[i].gone) kill(s->ranks[i].pid, SIGKILL);
}

static int supervisor_open(supervisor *s, tern_error *err)
{
    size_t ranks = (size_t)s->job->launch.ranks;
    s->ranks = tern__alloc(ranks * sizeof(*s->ranks), __func__, err);
    s->relay = tern__relay_new(s->job->launch.ranks, err);
    if (!s->ranks || !s->relay) return TERN_E_MEMORY;
    s->polls = tern__alloc((1 + tern__relay_poll_count(s->relay)) * sizeof(*s->polls), __func__, err);
    return s->polls ? open_signals(s, err) : TERN_E_MEMORY;
}

static void supervisor_close(supervisor *s)
{
    tern__close(&s->signal_fd);
    tern__close(&s->report[0]);
    tern__close(&s->report[1]);
    tern__relay_free(s->relay);
    tern__free(s->polls);
    tern__free(s->ranks);
}

int tern__job_supervise(tern__job *job, int *code, tern_error *err)
{
    supervisor s = {.job = job, .signal_fd = -1, .report = {-1, -1}, .deadline = INT64_MAX};
    int status = supervisor_open(&s, err);
    if (!status) status = start_ranks(&s, err);
    if (!status) status = watch(&s, err);
    if (status) abandon_ranks(&s);
    *code = s.code;
    supervisor_close(&s);
    return status;
}
