/* signals.c - the launcher's signals, read from a signalfd. */
#include "run/signals.h"

#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
static const int kept[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP}; /* ignored if they were */
static const int passed[] = {SIGUSR1, SIGUSR2};

bool tern__signal_is_passed(int number)
{
    return number == passed[0] || number == passed[1];
}

bool tern__signal_is_ending(int number)
{
    for (size_t i = 0; i < TERN__COUNT(ending); i++)
        if (number == ending[i]) return true;
    return false;
}

static void choose_signals(sigset_t *taken)
{
    sigemptyset(taken);
    sigaddset(taken, SIGCHLD);
    for (size_t i = 0; i < TERN__COUNT(passed); i++) sigaddset(taken, passed[i]);
    sigaddset(taken, SIGCONT);
    for (size_t i = 0; i < TERN__COUNT(kept); i++) {
        struct sigaction now;
        if (sigaction(kept[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(taken, kept[i]);
    }
}

bool tern__signal_stop_self(int number)
{
    sigset_t stop, before, pending;
    sigemptyset(&stop);
    sigaddset(&stop, number);
    sigprocmask(SIG_UNBLOCK, &stop, &before);
    raise(number);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return sigpending(&pending) == 0 && sigismember(&pending, SIGCONT);
}

static void exit_by_signal(int number)
{
    _exit(128 + number);
}

void tern__signals_enable(void)
{
    struct sigaction now;
    for (size_t i = 0; i < TERN__COUNT(ending) && getpid() == 1; i++)
        if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(ending[i], &(struct sigaction){.sa_handler = exit_by_signal}, NULL);
}

int tern__signals_open(sigset_t *before, tern_error *err)
{
    sigset_t taken, blocked;
    choose_signals(&taken);
    blocked = taken;
    sigaddset(&blocked, SIGPIPE);
    sigaddset(&blocked, SIGXFSZ);
    /* If the parent process ignored SIGCHLD, so would this one, and its children could not be waited for. */
    int fd = -1;
    if (sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL) ||
        sigprocmask(SIG_BLOCK, &blocked, before) ||
        (fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot watch for signals");
    return fd;
}
