/* supervise.h - from the first fork to the last wait of a job. */
#ifndef TERN_CLI_SUPERVISE_H
#define TERN_CLI_SUPERVISE_H

#include "job.h"

/* Starts the ranks, takes over job->launch.listen_fd, and watches until all are gone. *code = 0, or the first
 * failing rank's exit code (128 + signal). An error means that no rank is left running. */
int tern__job_supervise(tern__job *job, int *code, tern_error *err);

#endif
