/* failure.h - how a rank, or the launcher of a host, ended that should not have. */
#ifndef TERN_CLI_RUN_FAILURE_H
#define TERN_CLI_RUN_FAILURE_H

#include "comm/launch.h"

/* Travels between launchers as it is. */
typedef struct tern__failure {
    int32_t node;
    int32_t rank, local; /* -1: it was the launcher, whose ranks died with it         */
    int32_t pid, status; /* as waitpid says                                           */
    int32_t is_done;     /* its last words are all there                              */
    int64_t at_ns;       /* of this process's CLOCK_MONOTONIC; on the way: how long ago */
    int64_t wall_ns;     /* CLOCK_REALTIME of its host                                */
    char host[64];
    char error[512]; /* the message of its error.json, or what became of the launcher; "" */
    char tail[2048]; /* its last lines on stderr; ""                                   */
} tern__failure;

/* The exit code that it means for the job. */
int tern__failure_code(const tern__failure *failure);
/* "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)"; `own` is the node that says it, which other hosts are
 * named for. */
void tern__failure_describe(const tern__failure *failure, int own, char *text, size_t size);
/* Text from another process: ends within its bounds, and no control character of it reaches a terminal. */
void tern__text_clean(char *text, size_t size);
void tern__failure_clean(tern__failure *failure);
/* Reads torchelastic's error.json, a file of any length and content, into failure->error. */
void tern__failure_read_error(tern__failure *failure, int fd);
/* Of a rank that was killed by SIGKILL and says nothing itself: that the kernel has killed processes for lack
 * of memory, if it has since there were `before` of them. */
void tern__failure_suspect_memory(tern__failure *failure, long long before);
/* How many it has killed since the machine started; 0 where it does not say. */
long long tern__oom_kills(void);
/* The last ten lines of what the rank has written. */
void tern__failure_set_tail(tern__failure *failure, const char *bytes, size_t count);
/* The same of a file; nothing if it cannot be read. */
void tern__failure_read_tail(tern__failure *failure, const char *path);

#endif
