/* logs.h - what the ranks print and what is kept of it: torchrun's --log-dir, --redirects, --tee,
 * --local-ranks-filter. Files lie in DIR/<run id>_xxxxxx/attempt_<n>/<local rank>/. */
#ifndef TERN_CLI_RUN_LOGS_H
#define TERN_CLI_RUN_LOGS_H

#include "run/job.h"
#include "run/output.h"

#include <limits.h>

typedef struct tern__logs {
    const tern__job *job;
    char folder[PATH_MAX - 128]; /* of this run; "": nothing is saved */
} tern__logs;

/* Makes the run's folder if the job asks for it, under a temporary one if it names none. E_SYSTEM. */
int tern__logs_open(tern__logs *logs, const tern__job *job, tern_error *err);

/* Of this attempt (job->launch.attempt): makes the rank's folder and says where its streams go, [0] stdout
 * and [1] stderr; log files are open, pipes are not yet. E_SYSTEM. */
int tern__logs_plan(const tern__logs *logs, int local, tern__cli_output outputs[2], tern_error *err);

/* `file` ("error.json") in the rank's folder; false if nothing is saved. */
bool tern__logs_path(const tern__logs *logs, int local, const char *file, char *path, size_t size);

#endif
