/* job.h - what `tern run` was asked to start. */
#ifndef TERN_CLI_JOB_H
#define TERN_CLI_JOB_H

#include "comm/launch.h"

typedef struct tern__job {
    tern__launch launch;
    char **argv;  /* the program and its arguments, NULL at the end                */
    double grace; /* seconds from a signal to SIGKILL; 0: the default of the cause */
    int64_t started_ns;
} tern__job;

#endif
