/* terminal.c - hands the terminal to rank 0 and back.
 *
 * Every rank leads a process group, so that a signal reaches all that a shell wrapper has started. But a
 * terminal lets only its foreground group read, and sends the signals of Ctrl-C, Ctrl-\ and Ctrl-Z only to
 * that group. So rank 0's group becomes the foreground one, as a shell does with its jobs. Then tern run is
 * told of these keys by a *watcher*, a process in that group that sends it each signal that came from the
 * terminal. If tern run is in the background, or stdout is a pipe, its own group stays what the shell has
 * made it; rank 0 then stops when it reads the terminal (SIGTTIN), and gets it as soon as tern run has it. */
#include "run/terminal.h"

#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void tern__terminal_open(tern__terminal *terminal)
{
    *terminal = (tern__terminal){.fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)};
}

void tern__terminal_close(tern__terminal *terminal)
{
    tern__terminal_end(terminal);
    tern__close(&terminal->fd);
}

static bool is_foreground(const tern__terminal *terminal, pid_t group)
{
    return terminal->fd >= 0 && tcgetpgrp(terminal->fd) == group;
}

/* A group in the background that calls tcsetpgrp gets SIGTTOU, which would stop it. */
static void set_foreground(const tern__terminal *terminal, pid_t group)
{
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTTOU);
    sigprocmask(SIG_BLOCK, &stop, &before);
    tcsetpgrp(terminal->fd, group);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* ---- in rank 0 and in the watcher ---- */

static bool terminal_is_wanted(void)
{
    struct stat out;
    return isatty(STDIN_FILENO) && (fstat(STDOUT_FILENO, &out) || !S_ISFIFO(out.st_mode));
}

void tern__terminal_enter(const tern__terminal *terminal, pid_t launcher)
{
    if (terminal_is_wanted() && is_foreground(terminal, getpgid(launcher)))
        set_foreground(terminal, getpgrp());
}

/* Signals that processes send to the group are not passed on: tern run itself sends such. */
static _Noreturn void watcher_main(pid_t group, pid_t launcher)
{
    sigset_t all, keys;
    siginfo_t info;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "tern terminal");
    setpgid(0, group);
    closefrom(0);
    sigemptyset(&keys);
    sigaddset(&keys, SIGINT);
    sigaddset(&keys, SIGQUIT);
    sigaddset(&keys, SIGTSTP);
    while (getppid() == launcher)
        if (sigwaitinfo(&keys, &info) > 0 && info.si_code == SI_KERNEL) kill(launcher, info.si_signo);
    _exit(0);
}

/* ---- in tern run ---- */

static void start_watcher(tern__terminal *terminal)
{
    pid_t launcher = getpid();
    if (terminal->watcher) return;
    terminal->watcher = fork();
    if (terminal->watcher == 0) watcher_main(terminal->group, launcher);
    if (terminal->watcher > 0) setpgid(terminal->watcher, terminal->group);
    terminal->watcher = TERN__MAX(terminal->watcher, 0);
}

void tern__terminal_begin(tern__terminal *terminal, pid_t leader)
{
    terminal->group = leader;
    terminal->is_asked = false;
    terminal->is_given = terminal_is_wanted() && is_foreground(terminal, getpgrp());
    terminal->is_given |= is_foreground(terminal, leader); /* it was quicker */
    if (terminal->is_given) start_watcher(terminal);
}

void tern__terminal_end(tern__terminal *terminal)
{
    if (terminal->watcher) {
        kill(terminal->watcher, SIGKILL);
        TEMP_FAILURE_RETRY(waitpid(terminal->watcher, NULL, 0));
    }
    if (terminal->group && is_foreground(terminal, terminal->group)) set_foreground(terminal, getpgrp());
    terminal->watcher = terminal->group = 0;
    terminal->is_given = terminal->is_asked = false;
}

void tern__terminal_give(tern__terminal *terminal)
{
    if (!terminal->is_given && !terminal->is_asked) return;
    if (!terminal->group || !is_foreground(terminal, getpgrp())) return;
    start_watcher(terminal);
    set_foreground(terminal, terminal->group);
    terminal->is_given = true;
    terminal->is_asked = false;
    kill(-terminal->group, SIGCONT);
}

bool tern__terminal_lacks(tern__terminal *terminal)
{
    siginfo_t info = {0};
    if (terminal->fd < 0 || !terminal->group) return false;
    if (waitid(P_PID, (id_t)terminal->group, &info, WSTOPPED | WNOHANG) || !info.si_pid) return false;
    if (info.si_status != SIGTTIN && info.si_status != SIGTTOU) return false;
    terminal->is_asked = true;
    tern__terminal_give(terminal);
    return terminal->is_asked;
}
