/* job.h - the job that `tern run` was asked to start. */
#ifndef TERN_CLI_RUN_JOB_H
#define TERN_CLI_RUN_JOB_H

#include "comm/launch/launch.h"

typedef enum tern__bind { TERN__BIND_NONE, TERN__BIND_CORE, TERN__BIND_AUTO } tern__bind;

/* How the launchers of several hosts meet and notice that one is gone. */
typedef struct tern__rendezvous {
    bool has_key;     /* launch.key is a secret                                         */
    bool is_c10d;     /* --rdzv-backend c10d                                        */
    double timeout_s; /* until all hosts must have come                                 */
    int keep_alive_s; /* times keep_alive_max: a host silent for so many seconds is lost */
    int keep_alive_max;
} tern__rendezvous;

/* Where the ranks' output goes. */
typedef struct tern__log_opts {
    const char *dir;       /* NULL: a temporary folder, if anything is to be saved               */
    const char *redirects; /* "3" or "0:3,1:1" (bit 1 stdout, bit 2 stderr): only to a file      */
    const char *tee;       /* the same: to a file and to the console                             */
    const char *shown;     /* "0,2": the local ranks on the console; "": all                     */
    const char *prefix;    /* before lines on the console, with ${rank} etc.; NULL: the default  */
} tern__log_opts;

typedef struct tern__job {
    tern__launch launch;
    tern__rendezvous meeting;
    tern__log_opts logs;
    char **argv;  /* the program and its arguments; NULL at the end                */
    double grace; /* seconds from a signal to SIGKILL; 0: depends on the cause     */
    bool passes_local_rank;
    tern__bind bind;
    int64_t started_ns;
} tern__job;

#endif
