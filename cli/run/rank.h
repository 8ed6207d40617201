/* rank.h - one rank as a child process: its environment, arguments, cores and descriptors. */
#ifndef TERN_CLI_RUN_RANK_H
#define TERN_CLI_RUN_RANK_H

#include "run/binding.h"
#include "run/logs.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

typedef struct tern__rank {
    pid_t pid;
    int pid_fd;   /* readable once it is dead                                  */
    int error_fd; /* without a log folder: the file that TORCHELASTIC_ERROR_FILE names; or -1 */
    bool dead;    /* but perhaps not reaped yet                                */
    bool gone;    /* reaped: the pid may be somebody else's by now             */
} tern__rank;

/* What all ranks of an attempt are started with. */
typedef struct tern__start {
    const tern__job *job;
    const tern__logs *logs;
    const tern__binding *binding;
    const sigset_t *mask;
    struct rlimit files; /* descriptors that a rank may have, as tern run was given them */
    int report_fd;       /* a child that cannot run the program writes errno, an int, and its local rank */
} tern__start;

/* Starts the program as the host's rank `local`; outputs[].fd are then what it prints, yours. A child that
 * cannot run the program exits with 127 if there is no such program, else 126. Errors: E_SYSTEM. */
int tern__rank_start(const tern__start *start, int local, tern__cli_output outputs[2], tern__rank *rank,
                     tern_error *err);
/* Closes what is open; the process is not touched. */
void tern__rank_close(tern__rank *rank);

#endif
