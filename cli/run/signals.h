/* signals.h - lets the launcher read its signals from a descriptor. */
#ifndef TERN_CLI_RUN_SIGNALS_H
#define TERN_CLI_RUN_SIGNALS_H

#include "base/base.h"

#include <signal.h>

/* Opens a signalfd for SIGCHLD, the signals that end a job, those that are passed on, SIGTSTP and SIGCONT. A
 * signal that ends or stops a job and is ignored stays ignored, as nohup and a shell's background jobs
 * intend. SIGPIPE and SIGXFSZ are blocked, so that a closed reader returns EPIPE and a file size limit EFBIG.
 * *before: the signal mask for the ranks. Returns the descriptor, or a negative status. */
int tern__signals_open(sigset_t *before, tern_error *err);

/* Lets an ending signal end this process if it is PID 1, the first process of a container, for which the
 * kernel drops signals without a handler. For the time before tern__signals_open. */
void tern__signals_enable(void);

/* Is it SIGUSR1 or SIGUSR2? Batch systems warn with them; the program decides what they mean. */
bool tern__signal_is_passed(int number);
/* Is it SIGHUP, SIGINT, SIGQUIT or SIGTERM? */
bool tern__signal_is_ending(int number);
/* Stops this process by SIGTSTP or SIGTTIN, as if there were no signalfd, until SIGCONT. Returns false at
 * once if the kernel does not stop it: its process group is orphaned, so that no shell could continue it. */
bool tern__signal_stop_self(int number);

#endif
