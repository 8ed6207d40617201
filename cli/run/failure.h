/* failure.h - describes how a rank failed, or how the launcher of a host was lost. */
#ifndef TERN_CLI_RUN_FAILURE_H
#define TERN_CLI_RUN_FAILURE_H

#include "comm/launch/launch.h"

/* The launchers of a job exchange it as raw bytes. */
typedef struct tern__failure {
    int32_t node;
    int32_t rank, local; /* -1: the launcher, whose ranks died with it                     */
    int32_t pid, status; /* from waitpid; 0: other ranks still needed it, as `error` says  */
    int32_t by_peer;     /* it stopped because of another rank: not the root cause         */
    int64_t at_ns;       /* CLOCK_MONOTONIC of this process; in a message, the age in ns   */
    int64_t wall_ns;     /* CLOCK_REALTIME of the failure's host                           */
    char host[64];
    char error[512]; /* the message of error.json, or why the launcher is gone; may be "" */
    char tail[2048]; /* the last lines on stderr; may be ""                            */
} tern__failure;

/* Returns the exit code of a job that ends with this failure. */
int tern__failure_code(const tern__failure *failure);
/* Writes "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)", with the host unless it is this node, `own`.
 */
void tern__failure_describe(const tern__failure *failure, int own, char *text, size_t size);
/* Terminates text from another process within its buffer and replaces control characters, so that none
 * reaches a terminal. */
void tern__text_clean(char *text, size_t size);
void tern__failure_clean(tern__failure *failure);
/* Reads the message of torchelastic's error.json into failure->error. The file is not trusted. */
void tern__failure_read_error(tern__failure *failure, int fd);
/* If the rank was killed by SIGKILL and the kernel's OOM killer has acted since `before`, sets failure->error
 * to say so. `before` is an earlier value of tern__oom_kills. */
void tern__failure_suspect_memory(tern__failure *failure, long long before);
/* Returns how many processes the OOM killer has killed since the machine booted; 0 if unknown. */
long long tern__oom_kills(void);
/* Keeps the last ten lines of the rank's output in failure->tail. */
void tern__failure_set_tail(tern__failure *failure, const char *bytes, size_t count);
/* The same from a file; does nothing if it cannot be read. */
void tern__failure_read_tail(tern__failure *failure, const char *path);

#endif
