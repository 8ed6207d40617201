#include "rank.h"

#include "cli.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- the child's side: nothing here returns to the launcher's code ---- */

static int put_started(const tern__job *job)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)job->started_ns);
    return setenv(TERN__ENV_STARTED, text, 0);
}

/* Of all ranks but 0, whose terminal stays a terminal. */
static int redirect(int out, int err)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
           dup2(err, STDERR_FILENO) < 0;
}

static _Noreturn void run_child(const tern__job *job, int index, const sigset_t *mask, int report_fd, int out,
                                int err, pid_t launcher)
{
    if (!tern__launch_enter(&job->launch, index, launcher) && !(index && redirect(out, err)) &&
        !put_started(job) && !sigprocmask(SIG_SETMASK, mask, NULL))
        execvp(job->argv[0], job->argv);
    int reason = errno;
    while (write(report_fd, &reason, sizeof(reason)) < 0 && errno == EINTR) continue;
    _exit(reason == ENOENT ? 127 : 126);
}

/* ---- the launcher's side ---- */

static int open_pipe(int ends[2], tern_error *err)
{
    if (pipe2(ends, O_CLOEXEC) == 0) return TERN_OK;
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot make a pipe for a rank's output");
}

int tern__rank_start(const tern__job *job, int index, const sigset_t *mask, int report_fd, tern__rank *rank,
                     tern_error *err)
{
    int out[2] = {-1, -1}, error[2] = {-1, -1};
    pid_t launcher = getpid(), pid = -1;
    int status = TERN_OK;
    if (index > 0) status = open_pipe(out, err);
    if (!status && index > 0) status = open_pipe(error, err);
    if (!status && (pid = fork()) < 0)
        status = tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot start rank %d", index);
    if (pid == 0) run_child(job, index, mask, report_fd, out[1], error[1], launcher);
    tern__close(&out[1]);
    tern__close(&error[1]);
    if (status) {
        tern__close(&out[0]);
        tern__close(&error[0]);
    }
    *rank = (tern__rank){.pid = pid, .gone = pid < 0, .out_fd = out[0], .err_fd = error[0]};
    return status;
}
