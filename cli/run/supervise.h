/* supervise.h - from the first fork to the last wait of a job. */
#ifndef TERN_CLI_RUN_SUPERVISE_H
#define TERN_CLI_RUN_SUPERVISE_H

#include "run/job.h"

/* Meets the launchers of the other hosts, starts the ranks, again after a failure if the job says so, and
 * watches until all are gone. *code = 0, or the exit code of the first failing rank of all hosts (128 +
 * signal). An error means that no rank of this host is left running. */
int tern__job_supervise(tern__job *job, int *code, tern_error *err);

#endif
