#include "rank.h"

#include "cli.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* ---- environment: torchrun's names and values ---- */

static int put(const char *name, const char *value)
{
    return setenv(name, value, 1);
}

static int put_int(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return put(name, text);
}

/* One host, one role: each of torchrun's three kinds of rank is the same number. */
static int put_torchrun(const tern__job *job, int index)
{
    return put_int("RANK", index) || put_int("LOCAL_RANK", index) || put_int("ROLE_RANK", index) ||
           put_int("WORLD_SIZE", job->ranks) || put_int("LOCAL_WORLD_SIZE", job->ranks) ||
           put_int("ROLE_WORLD_SIZE", job->ranks) || put_int("GROUP_RANK", 0) ||
           put_int("GROUP_WORLD_SIZE", 1) || put("ROLE_NAME", "default") || put("MASTER_ADDR", job->addr) ||
           put_int("MASTER_PORT", job->port) || put_int("TORCHELASTIC_RESTART_COUNT", 0) ||
           put_int("TORCHELASTIC_MAX_RESTARTS", 0) || put("TORCHELASTIC_RUN_ID", "none") ||
           put("TORCHELASTIC_USE_AGENT_STORE", "False");
}

static int put_started(const tern__job *job)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)job->started_ns);
    return setenv(TERN__ENV_STARTED, text, 0);
}

static int put_environment(const tern__job *job, int index)
{
    if (put_torchrun(job, index) || put_started(job) || put(TERN__ENV_SECRET, job->secret) ||
        put_int(TERN__ENV_PORT, job->meet_port))
        return -1;
    if (index == 0 ? put_int(TERN__ENV_LISTEN_FD, job->listen_fd) : unsetenv(TERN__ENV_LISTEN_FD)) return -1;
    if (getenv("OMP_NUM_THREADS")) return 0;
    return put_int("OMP_NUM_THREADS", TERN__MAX(1, job->cores / job->ranks));
}

/* ---- the child's side: nothing here returns to the launcher's code ---- */

/* Rank 0 is the one whose terminal stays a terminal, and it alone keeps the listening descriptor over exec.
 */
static int keep_rank0_descriptors(const tern__job *job)
{
    return fcntl(job->listen_fd, F_SETFD, 0);
}

static int redirect(int out, int err)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
           dup2(err, STDERR_FILENO) < 0;
}

/* The kernel kills this rank when the launcher dies, however it dies; one that died before prctl is seen by
 * getppid. */
static int die_with(pid_t launcher)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) return -1;
    if (getppid() != launcher) _exit(128 + SIGKILL);
    return 0;
}

static _Noreturn void run_child(const tern__job *job, int index, const sigset_t *mask, int report_fd, int out,
                                int err, pid_t launcher)
{
    if (!die_with(launcher) && !(index == 0 ? keep_rank0_descriptors(job) : redirect(out, err)) &&
        !put_environment(job, index) && !sigprocmask(SIG_SETMASK, mask, NULL))
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
