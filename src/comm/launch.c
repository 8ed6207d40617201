#include "comm/launch.h"

#include "comm/store/listen.h"
#include "comm/sys.h"
#include "device/device.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the secret and the meeting point ---- */

tern__launch tern__launch_local(int ranks)
{
    return (tern__launch){.ranks = ranks, .addr = "127.0.0.1", .reserve_fd = -1, .listen_fd = -1};
}

static int make_secret(tern__launch *launch, tern_error *err)
{
    uint8_t bytes[TERN__SECRET_BYTES];
    if (sodium_init() < 0)
        return tern__error_set(err, __func__, TERN_E_SYSTEM, "libsodium cannot start: no random numbers");
    randombytes_buf(bytes, sizeof(bytes));
    sodium_bin2hex(launch->secret, sizeof(launch->secret), bytes, sizeof(bytes));
    sodium_memzero(bytes, sizeof(bytes));
    return TERN_OK;
}

static int read_port(int fd, int *port, tern_error *err)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof(at);
    if (getsockname(fd, (struct sockaddr *)&at, &size))
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot read a socket's port");
    in_port_t number = at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                                : ((struct sockaddr_in *)&at)->sin_port;
    *port = ntohs(number);
    return TERN_OK;
}

static int open_meeting_point(tern__launch *launch, tern_error *err)
{
    tern__bootstrap boot = {.port = launch->port, .listen_fd = -1};
    if (strlen(launch->addr) >= sizeof(boot.addr))
        return tern__error_set(err, __func__, TERN_E_INVALID, "\"%.32s...\" is too long", launch->addr);
    memcpy(boot.addr, launch->addr, strlen(launch->addr) + 1);
    launch->reserve_fd = tern__reserve(&boot, err);
    if (launch->reserve_fd < 0) return launch->reserve_fd;
    boot.port = 0;
    launch->listen_fd = tern__listen(&boot, err);
    if (launch->listen_fd < 0) return launch->listen_fd;
    int status = read_port(launch->reserve_fd, &launch->port, err);
    return status ? status : read_port(launch->listen_fd, &launch->meet_port, err);
}

int tern__launch_open(tern__launch *launch, tern_error *err)
{
    int status = make_secret(launch, err);
    return status ? status : open_meeting_point(launch, err);
}

void tern__launch_close(tern__launch *launch)
{
    tern__close(&launch->listen_fd);
    tern__close(&launch->reserve_fd);
    sodium_memzero(launch->secret, sizeof(launch->secret));
}

/* ---- the environment: torchrun's names and values ---- */

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
static int put_torchrun(const tern__launch *launch, int rank)
{
    return put_int("RANK", rank) || put_int("LOCAL_RANK", rank) || put_int("ROLE_RANK", rank) ||
           put_int("WORLD_SIZE", launch->ranks) || put_int("LOCAL_WORLD_SIZE", launch->ranks) ||
           put_int("ROLE_WORLD_SIZE", launch->ranks) || put_int("GROUP_RANK", 0) ||
           put_int("GROUP_WORLD_SIZE", 1) || put("ROLE_NAME", "default") ||
           put("MASTER_ADDR", launch->addr) || put_int("MASTER_PORT", launch->port) ||
           put_int("TORCHELASTIC_RESTART_COUNT", 0) || put_int("TORCHELASTIC_MAX_RESTARTS", 0) ||
           put("TORCHELASTIC_RUN_ID", "none") || put("TORCHELASTIC_USE_AGENT_STORE", "False");
}

static int put_environment(const tern__launch *launch, int rank)
{
    if (put_torchrun(launch, rank) || put(TERN__ENV_SECRET, launch->secret) ||
        put_int(TERN__ENV_PORT, launch->meet_port))
        return -1;
    if (rank == 0 ? put_int(TERN__ENV_LISTEN_FD, launch->listen_fd) : unsetenv(TERN__ENV_LISTEN_FD))
        return -1;
    if (getenv("OMP_NUM_THREADS")) return 0;
    return put_int("OMP_NUM_THREADS", TERN__MAX(1, tern__device_cores() / launch->ranks));
}

/* ---- in the child ---- */

/* One whose parent died before prctl is seen by getppid. */
static int die_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) return -1;
    if (getppid() != parent) _exit(128 + SIGKILL);
    return 0;
}

/* Rank 0 alone listens, also after an exec: were it to die, its peers would be refused instead of kept
 * waiting. */
static int keep_descriptors(const tern__launch *launch, int rank)
{
    close(launch->reserve_fd);
    return rank == 0 ? fcntl(launch->listen_fd, F_SETFD, 0) : close(launch->listen_fd);
}

int tern__launch_enter(const tern__launch *launch, int rank, pid_t parent)
{
    return die_with(parent) || keep_descriptors(launch, rank) || put_environment(launch, rank) ? -1 : 0;
}

/* ---- how a rank ended ---- */

int tern__launch_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void tern__launch_describe(int rank, pid_t pid, int status, char *text, size_t size)
{
    const char *name = WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : NULL;
    if (WIFSIGNALED(status))
        snprintf(text, size, "rank %d (pid %d) was killed by signal %d (SIG%s)", rank, (int)pid,
                 WTERMSIG(status), name ? name : "RT");
    else
        snprintf(text, size, "rank %d (pid %d) exited with code %d", rank, (int)pid, WEXITSTATUS(status));
}
