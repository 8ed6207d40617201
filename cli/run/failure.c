/* failure.c - collects what is known of a failed rank: its status, error.json, OOM kills and last lines. */
#include "run/failure.h"

#include "cli.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAIL_LINES       10
#define ERROR_FILE_BYTES (1 << 20) /* a longer file is not an error.json */

int tern__failure_code(const tern__failure *failure)
{
    return failure->rank < 0 || !failure->status ? TERN__EXIT_FAILED
                                                 : tern__launch_exit_code(failure->status);
}

void tern__failure_describe(const tern__failure *failure, int own, char *text, size_t size)
{
    char what[128], where[96] = "";
    if (failure->rank < 0) {
        snprintf(text, size, "node %d (%s): %s", failure->node, failure->host, failure->error);
        return;
    }
    tern__launch_describe(failure->rank, failure->pid, failure->status, what, sizeof(what));
    if (failure->node != own)
        snprintf(where, sizeof(where), " on node %d (%s)", failure->node, failure->host);
    snprintf(text, size, "%s%s%s%s", what, where, failure->status ? "" : " ",
             failure->status ? "" : failure->error);
}

void tern__text_clean(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *at = text; *at; at++)
        if ((*at > 0 && *at < ' ' && *at != '\n' && *at != '\t') || *at == 127) *at = '?';
}

void tern__failure_clean(tern__failure *failure)
{
    tern__text_clean(failure->host, sizeof(failure->host));
    tern__text_clean(failure->error, sizeof(failure->error));
    tern__text_clean(failure->tail, sizeof(failure->tail));
}

/* Finds the text in {"message": {"message": "ValueError: x", ..}} or {"message": "x"}. */
static const char *find_message(const cJSON *file)
{
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(file, "message");
    if (cJSON_IsObject(message)) message = cJSON_GetObjectItemCaseSensitive(message, "message");
    return cJSON_GetStringValue(message);
}

void tern__failure_read_error(tern__failure *failure, int fd)
{
    char *text = malloc(ERROR_FILE_BYTES);
    ssize_t bytes = text && fd >= 0 ? pread(fd, text, ERROR_FILE_BYTES, 0) : 0;
    cJSON *file = bytes > 0 ? cJSON_ParseWithLength(text, (size_t)bytes) : NULL;
    const char *message = find_message(file);
    if (message) snprintf(failure->error, sizeof(failure->error), "%s", message);
    cJSON_Delete(file);
    free(text);
}

long long tern__oom_kills(void)
{
    char line[128];
    long long count = 0;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "oom_kill %19lld", &count) != 1) continue;
    if (file) fclose(file);
    return count;
}

void tern__failure_suspect_memory(tern__failure *failure, long long before)
{
    if (!WIFSIGNALED(failure->status) || WTERMSIG(failure->status) != SIGKILL) return;
    long long killed = tern__oom_kills() - before;
    if (killed > 0)
        snprintf(failure->error, sizeof(failure->error),
                 "out of memory: the kernel's OOM killer has killed %lld process%s since the ranks started",
                 killed, killed == 1 ? "" : "es");
}

void tern__failure_set_tail(tern__failure *failure, const char *bytes, size_t count)
{
    while (count && (bytes[count - 1] == '\n' || !bytes[count - 1])) count--;
    size_t start = count, room = sizeof(failure->tail) - 1;
    for (int lines = 0; start && count - start < room; start--)
        if (bytes[start - 1] == '\n' && ++lines == TAIL_LINES) break;
    memcpy(failure->tail, bytes + start, count - start);
    failure->tail[count - start] = '\0';
}

void tern__failure_read_tail(tern__failure *failure, const char *path)
{
    char bytes[sizeof(failure->tail)];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    off_t start = TERN__MAX(end - (off_t)sizeof(bytes), (off_t)0);
    ssize_t count = end > 0 ? pread(fd, bytes, sizeof(bytes), start) : 0;
    if (count > 0) tern__failure_set_tail(failure, bytes, (size_t)count);
    if (fd >= 0) close(fd);
}
