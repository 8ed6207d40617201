/* logs.h - decides where the ranks' output goes: torchrun's --log-dir, --redirects, --tee and
 * --local-ranks-filter. Files are in DIR/<run id>_xxxxxx/attempt_<n>/<local rank>/. */
#ifndef TERN_CLI_RUN_LOGS_H
#define TERN_CLI_RUN_LOGS_H

#include "run/job.h"
#include "run/output.h"

#include <limits.h>

typedef struct tern__logs {
    const tern__job *job;
    char folder[PATH_MAX - 128]; /* the run's; "": nothing is saved */
} tern__logs;

/* Makes the run's folder if anything is to be saved; without --log-dir in a temporary folder. E_SYSTEM. */
int tern__logs_open(tern__logs *logs, const tern__job *job, tern_error *err);

/* Makes the rank's folder of this attempt (job->launch.attempt) and fills in where its streams go: [0]
 * stdout, [1] stderr. Opens the log files, but no pipes. E_SYSTEM. */
int tern__logs_plan(const tern__logs *logs, int local, tern__cli_output outputs[2], tern_error *err);

/* Writes the path of `file` ("error.json") in the rank's folder. Returns false if nothing is saved. */
bool tern__logs_path(const tern__logs *logs, int local, const char *file, char *path, size_t size);

#endif
