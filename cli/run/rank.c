/* rank.c - forks a rank: the child sets up its environment and streams and runs the program. */
#include "run/rank.h"

#include "cli.h"
#include "run/value.h"

#include "comm/sys.h"
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the child; it never returns to the launcher's code ---- */

static int put_started(const tern__job *job)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)job->started_ns);
    return setenv(TERN__ENV_STARTED, text, 0);
}

/* A thread of libgomp that waits for its team spins for milliseconds. On a core that others want, too, it
 * soon sleeps instead, so that the thread it waits for may run there. */
static int put_spins(const tern__start *start)
{
    if (!start->cores_are_short || getenv("OMP_WAIT_POLICY")) return 0;
    return setenv("GOMP_SPINCOUNT", "1000", 0);
}

/* Without a log folder the file is a memfd of the launcher, which vanishes with the job however that ends. */
static int put_error_file(const tern__start *start, int local, const tern__rank *rank, pid_t launcher)
{
    char path[PATH_MAX];
    if (!tern__logs_path(start->logs, local, "error.json", path, sizeof(path)))
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)launcher, rank->error_fd);
    return setenv("TORCHELASTIC_ERROR_FILE", path, 1);
}

static int redirect_stream(const tern__cli_output *output, int write_fd, int fd)
{
    int to = output->is_piped ? write_fd : output->file_fd;
    return to >= 0 && dup2(to, fd) < 0;
}

/* Rank 0 keeps the launcher's stdin. */
static int redirect_all(const tern__launch *launch, int local, const tern__cli_output outputs[2],
                        const int write_fds[2])
{
    int null = launch->first + local ? open("/dev/null", O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    return null < 0 || (null && dup2(null, STDIN_FILENO) < 0) ||
           redirect_stream(&outputs[0], write_fds[0], STDOUT_FILENO) ||
           redirect_stream(&outputs[1], write_fds[outputs[1].joins_out ? 0 : 1], STDERR_FILENO);
}

/* Returns the rank's arguments; NULL and errno if memory is short. */
static char **make_arguments(const tern__job *job, int local)
{
    char number[16];
    int count = 0, used = 0;
    const tern__macro macro = {"local_rank", number};
    snprintf(number, sizeof(number), "%d", local);
    while (job->argv[count]) count++;
    char **argv = calloc((size_t)count + 2, sizeof(*argv)), *own = NULL;
    if (!argv || (job->passes_local_rank && asprintf(&own, "--local-rank=%d", local) < 0)) return NULL;
    argv[used++] = job->argv[0];
    if (own) argv[used++] = own;
    for (int i = 1; i < count; i++) {
        size_t size = 1 + tern__macro_expand(job->argv[i], &macro, 1, NULL, 0);
        if (!(argv[used] = malloc(size))) return NULL;
        tern__macro_expand(job->argv[i], &macro, 1, argv[used++], size);
    }
    return argv;
}

/* From here on a signal to the group reaches what the program starts, too. */
static int enter_group(const tern__start *start, int local, pid_t launcher)
{
    if (setpgid(0, 0)) return -1;
    tern__guard_add(start->guard, getpid());
    if (start->job->launch.first + local == 0) tern__terminal_enter(start->terminal, launcher);
    return 0;
}

static _Noreturn void run_child(const tern__start *start, int local, const tern__rank *rank, pid_t launcher,
                                const tern__cli_output outputs[2], const int write_fds[2])
{
    const tern__job *job = start->job;
    char **argv = NULL;
    if (!tern__launch_enter(&job->launch, local, launcher) && !enter_group(start, local, launcher) &&
        !redirect_all(&job->launch, local, outputs, write_fds) && !put_started(job) && !put_spins(start) &&
        !put_error_file(start, local, rank, launcher) && !tern__presence_enter(start->presence, launcher) &&
        !tern__binding_enter(start->binding, local) && !setrlimit(RLIMIT_NOFILE, &start->files) &&
        (argv = make_arguments(job, local)) && !sigprocmask(SIG_SETMASK, start->mask, NULL))
        execvp(argv[0], argv);
    int report[2] = {errno, local};
    while (write(start->report_fd, report, sizeof(report)) < 0 && errno == EINTR) continue;
    _exit(report[0] == ENOENT ? 127 : 126);
}

/* ---- the launcher ---- */

/* Returns how many threads of the machine run or are ready to, beside this one; 0 if the kernel does not
 * tell. */
static int running_now(void)
{
    char line[4096];
    int count = 1;
    FILE *file = fopen("/proc/stat", "re");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "procs_running %d", &count) != 1) continue;
    if (file) fclose(file);
    return count - 1;
}

/* The fewest that are running in a few moments are those that compute; the others only pass by. */
bool tern__cores_are_short(const tern__launch *launch)
{
    int threads = tern__launch_threads(launch), others = INT_MAX;
    if (threads < 2) return false;
    for (int look = 0; look < 4; look++) {
        others = TERN__MIN(others, running_now());
        usleep(1000);
    }
    long own = (long)threads * launch->ranks;
    return own > tern__device_cores() || own + others > sysconf(_SC_NPROCESSORS_ONLN);
}

static int open_pipe(tern__cli_output *output, int *write_fd, tern_error *err)
{
    int ends[2];
    if (!output->is_piped || output->joins_out) return TERN_OK;
    if (pipe2(ends, O_CLOEXEC))
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot make a pipe for a rank's output");
    output->fd = ends[0];
    *write_fd = ends[1];
    return TERN_OK;
}

static int open_error_file(const tern__start *start, tern__rank *rank, tern_error *err)
{
    if (*start->logs->folder) return TERN_OK;
    rank->error_fd = memfd_create("error.json", MFD_CLOEXEC);
    if (rank->error_fd >= 0) return TERN_OK;
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot make a rank's error file");
}

/* Linux before 5.3 has no pidfds, and old filters of system calls forbid them. SIGCHLD tells of the rank's
 * end then, but not whether another one ended before. */
static int watch_rank(tern__rank *rank, int number, tern_error *err)
{
    rank->pid_fd = (int)syscall(SYS_pidfd_open, rank->pid, 0);
    rank->polled = rank->pid_fd < 0 && (errno == ENOSYS || errno == EPERM);
    if (rank->pid_fd >= 0 || rank->polled) return TERN_OK;
    tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot watch rank %d", number);
    kill(rank->pid, SIGKILL);
    return TERN_E_SYSTEM;
}

static int fork_rank(const tern__start *start, int local, const tern__cli_output outputs[2],
                     const int write_fds[2], tern__rank *rank, tern_error *err)
{
    pid_t launcher = getpid();
    int number = start->job->launch.first + local;
    rank->pid = fork();
    if (rank->pid < 0) return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot start rank %d", number);
    if (rank->pid == 0) run_child(start, local, rank, launcher, outputs, write_fds);
    rank->gone = rank->is_group_gone = false;
    setpgid(rank->pid, rank->pid); /* the rank does it too: who comes first is open */
    return watch_rank(rank, number, err);
}

/* Closes the descriptors that only the rank needs from now on, and after an error all of them. */
static void close_ends(tern__cli_output outputs[2], int write_fds[2], bool failed)
{
    for (int i = 0; i < 2; i++) {
        tern__close(&write_fds[i]);
        if (failed) tern__close(&outputs[i].fd);
        if (failed || !outputs[i].is_piped) tern__close(&outputs[i].file_fd);
    }
}

int tern__rank_start(const tern__start *start, int local, tern__cli_output outputs[2], tern__rank *rank,
                     tern_error *err)
{
    int write_fds[2] = {-1, -1};
    *rank = (tern__rank){.gone = true, .is_group_gone = true, .pid_fd = -1, .error_fd = -1};
    int status = open_error_file(start, rank, err);
    for (int i = 0; i < 2 && !status; i++) status = open_pipe(&outputs[i], &write_fds[i], err);
    if (!status) status = fork_rank(start, local, outputs, write_fds, rank, err);
    close_ends(outputs, write_fds, status != TERN_OK);
    return status;
}

void tern__rank_close(tern__rank *rank)
{
    tern__close(&rank->pid_fd);
    tern__close(&rank->error_fd);
}
