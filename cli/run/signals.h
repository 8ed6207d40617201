/* signals.h - the signals that a launcher takes, as a descriptor. */
#ifndef TERN_CLI_RUN_SIGNALS_H
#define TERN_CLI_RUN_SIGNALS_H

#include "base/base.h"

#include <signal.h>

/* SIGCHLD, the signals that end a job and those that are passed on. An ending signal that is ignored stays
 * so: nohup and a shell's background jobs mean it. SIGPIPE and SIGXFSZ are blocked, so that a reader that
 * went away is an EPIPE, and a limit on the size of files an EFBIG. *before: the mask that the ranks get.
 * Returns the descriptor, or a negative status. */
int tern__signals_open(sigset_t *before, tern_error *err);

/* SIGUSR1 and SIGUSR2: batch systems warn with them; what they mean is the program's to say. */
bool tern__signal_is_passed(int number);
/* SIGHUP, SIGINT, SIGQUIT, SIGTERM. */
bool tern__signal_is_ending(int number);
const char *tern__signal_name(int number);

#endif
