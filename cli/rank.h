/* rank.h - one rank as a child process: its environment and descriptors. */
#ifndef TERN_CLI_RANK_H
#define TERN_CLI_RANK_H

#include "job.h"

#include <signal.h>
#include <sys/types.h>

typedef struct tern__rank {
    pid_t pid;
    bool gone;          /* reaped: the pid may be somebody else's by now           */
    int out_fd, err_fd; /* what it prints, to be read; -1 for rank 0, who inherits */
} tern__rank;

/* Starts the program as rank `index` with the signal mask `mask`. A child that cannot run the program writes
 * errno, an int, to `report_fd` and exits with 127 if there is no such program, else 126. */
int tern__rank_start(const tern__job *job, int index, const sigset_t *mask, int report_fd, tern__rank *rank,
                     tern_error *err);

#endif
