/* guard.c - the process that kills the ranks' process groups when tern run is gone. It reads the groups from
 * a pipe, of which tern run holds the only other end, and leads a session of its own, so that no signal for
 * tern run or its terminal reaches it. */
#include "run/guard.h"

#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A message is a pid_t: the group to add, minus the group to remove, or 0 when tern run ends properly. */
static void send_group(const tern__guard *guard, pid_t group)
{
    while (guard->fd >= 0 && write(guard->fd, &group, sizeof(group)) < 0 && errno == EINTR) continue;
}

void tern__guard_add(const tern__guard *guard, pid_t group)
{
    send_group(guard, group);
}

void tern__guard_remove(const tern__guard *guard, pid_t group)
{
    send_group(guard, -group);
}

/* ---- the guard ---- */

static void guard_note_group(pid_t *groups, int count, pid_t message)
{
    for (int i = 0; i < count; i++) {
        if (groups[i] != (message > 0 ? 0 : -message)) continue;
        groups[i] = message > 0 ? message : 0;
        return;
    }
}

/* Keeps no descriptor of tern run but the pipe: the readers of its output wait for the last copy to close. */
static _Noreturn void guard_main(int read_fd, pid_t *groups, int count)
{
    sigset_t all;
    pid_t message = 1;
    int null = open("/dev/null", O_RDWR);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    prctl(PR_SET_NAME, "tern guard");
    for (int fd = 0; null >= 0 && fd < 3; fd++) dup2(null, fd);
    dup2(read_fd, 3);
    closefrom(4);
    for (ssize_t got = 1; got && message;) {
        got = read(3, &message, sizeof(message));
        if (got == sizeof(message)) guard_note_group(groups, count, message);
    }
    for (int i = 0; i < count && message; i++)
        if (groups[i]) kill(-groups[i], SIGKILL);
    _exit(0);
}

/* ---- tern run ---- */

int tern__guard_open(tern__guard *guard, int ranks, tern_error *err)
{
    int ends[2];
    *guard = (tern__guard){.fd = -1};
    pid_t *groups = tern__alloc((size_t)ranks * sizeof(*groups), __func__, err);
    if (!groups) return TERN_E_MEMORY;
    int status = TERN_OK;
    if (pipe2(ends, O_CLOEXEC)) {
        status = tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot make a pipe to a guard");
    } else {
        guard->pid = fork();
        if (guard->pid == 0) guard_main(ends[0], groups, ranks);
        if (guard->pid < 0)
            status = tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot start a guard of the ranks");
        guard->pid = TERN__MAX(guard->pid, 0);
        guard->fd = ends[1];
        close(ends[0]);
    }
    tern__free(groups);
    return status;
}

void tern__guard_close(tern__guard *guard)
{
    send_group(guard, 0);
    tern__close(&guard->fd);
    if (guard->pid) TEMP_FAILURE_RETRY(waitpid(guard->pid, NULL, 0));
    guard->pid = 0;
}
