/* guard.h - a process that outlives `tern run` by a moment: if tern run dies without ending its ranks, as of
 * SIGKILL, the guard kills their process groups. PR_SET_PDEATHSIG would reach only the ranks themselves and
 * not what a shell wrapper has started. */
#ifndef TERN_CLI_RUN_GUARD_H
#define TERN_CLI_RUN_GUARD_H

#include "base/base.h"

#include <sys/types.h>

typedef struct tern__guard {
    pid_t pid; /* 0: there is none */
    int fd;    /* a pipe to the guard; its end tells the guard that tern run is gone */
} tern__guard;

/* Starts a guard for up to `ranks` process groups. E_MEMORY, E_SYSTEM. */
int tern__guard_open(tern__guard *guard, int ranks, tern_error *err);
/* Ends the guard; it kills nothing. */
void tern__guard_close(tern__guard *guard);

/* tern__guard_add names a group to be killed, tern__guard_remove one that is gone. A rank adds itself before
 * it runs the program, so there is no moment in which neither PR_SET_PDEATHSIG nor the guard reaches it. */
void tern__guard_add(const tern__guard *guard, pid_t group);
void tern__guard_remove(const tern__guard *guard, pid_t group);

#endif
