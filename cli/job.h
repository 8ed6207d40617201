/* job.h - what `tern run` was asked to start. */
#ifndef TERN_CLI_JOB_H
#define TERN_CLI_JOB_H

#include "comm/bootstrap.h"

typedef struct tern__job {
    int ranks;
    int cores;   /* that this process may use                                     */
    char **argv; /* the program and its arguments, NULL at the end                */
    const char *addr;
    int port;       /* MASTER_PORT: as asked for; once reserved, the real one        */
    int reserve_fd; /* keeps it for the program, as long as the job runs             */
    int meet_port;  /* TERN_PORT                                                     */
    int listen_fd;  /* where rank 0 will accept its peers                            */
    double grace;   /* seconds from a signal to SIGKILL; 0: the default of the cause */
    int64_t started_ns;
    char secret[2 * TERN__SECRET_BYTES + 1];
} tern__job;

#endif
