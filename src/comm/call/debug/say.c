/* say.c - the debug back end's trace. */
#include "comm/call/debug/debug.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Does not wait for a reader if the file is a pipe. Writes block once it is open, as on standard error. */
static int open_named(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
    if (fd >= 0) fcntl(fd, F_SETFL, O_APPEND);
    return fd;
}

int tern__debug_open(tern__debug *debug, tern_error *err)
{
    const char *path = tern__env("TERN_DEBUG_FILE");
    debug->fd = path ? open_named(path) : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    if (debug->fd >= 0) return TERN_OK;
    return tern__error_errno(err, "tern_group_open", TERN_E_IO, "cannot open %s for the debug back end",
                             path ? path : "standard error");
}

void tern__debug_close(tern__debug *debug)
{
    if (debug->fd >= 0) close(debug->fd);
}

void tern__debug_say(const tern__debug *debug, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    int rank = tern_group_world_rank(debug->group, debug->group->boot.rank);
    int used = snprintf(line, sizeof(line), "tern debug: rank %d: %lld us: group %u: ", rank,
                        (long long)(tern__now_ns() / 1000), debug->group->id);
    va_start(args, fmt);
    used += vsnprintf(line + used, sizeof(line) - (size_t)used - 1, fmt, args);
    va_end(args);
    used = TERN__MIN(used, (int)sizeof(line) - 2);
    line[used] = '\n';
    ssize_t written = write(debug->fd, line, (size_t)used + 1); /* whole lines: ranks may share the file */
    (void)written;
}

int tern__debug_tell(const tern__debug *debug, int status, const tern_error *err)
{
    if (status < 0 && err) tern__debug_say(debug, "%s: %s", tern_status_name(status), err->text);
    return status;
}
