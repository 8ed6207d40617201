/* supervise.h - runs a job from the first fork to the last wait. */
#ifndef TERN_CLI_RUN_SUPERVISE_H
#define TERN_CLI_RUN_SUPERVISE_H

#include "run/job.h"

/* Connects to the launchers of the other hosts, starts the ranks, restarts them after a failure if the job
 * says so, and waits until all are gone. *code is 0, or the exit code (128 + signal) of the first failing
 * rank of all hosts. After an error no rank of this host is left running. */
int tern__job_supervise(tern__job *job, int *code, tern_error *err);

#endif
