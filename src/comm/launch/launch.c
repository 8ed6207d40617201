/* launch.c - the meeting point, the secret and the environment of the ranks that tern run and tern_spawn
 * start. */
#include "comm/launch/launch.h"

#include "comm/store/listen.h"
#include "comm/sys.h"
#include "device/device.h"

#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the secret and the meeting point ---- */

tern__launch tern__launch_local(int ranks)
{
    return (tern__launch){.ranks = ranks,
                          .world = ranks,
                          .nodes = 1,
                          .role_world = ranks,
                          .role = "default",
                          .run_id = "none",
                          .addr = "127.0.0.1",
                          .reserve_fd = -1,
                          .listen_fd = -1};
}

static int make_seed(tern__launch *launch, tern_error *err)
{
    if (sodium_init() < 0)
        return tern__error_set(err, __func__, TERN_E_SYSTEM, "libsodium cannot start: no random numbers");
    randombytes_buf(launch->seed, sizeof(launch->seed));
    return TERN_OK;
}

static const char *listening_addr(const tern__launch *launch)
{
    return launch->at_addr ? launch->at_addr : launch->addr;
}

int tern__launch_place(const tern__launch *launch, int port, tern__bootstrap *boot, tern_error *err)
{
    const char *addr = listening_addr(launch);
    *boot = (tern__bootstrap){
        .world = launch->nodes, .local_world = 1, .is_placed = true, .port = port, .listen_fd = -1};
    if (strlen(addr) >= sizeof(boot->addr))
        return tern__error_set(err, __func__, TERN_E_INVALID, "\"%.32s...\" is too long", addr);
    memcpy(boot->addr, addr, strlen(addr) + 1);
    return TERN_OK;
}

int tern__launch_reserve(tern__launch *launch, tern_error *err)
{
    tern__bootstrap boot;
    int status = tern__launch_place(launch, launch->port, &boot, err);
    if (status) return status;
    launch->reserve_fd = tern__reserve(&boot, err);
    if (launch->reserve_fd < 0) return launch->reserve_fd;
    launch->port = tern__port_of(launch->reserve_fd);
    return TERN_OK;
}

int tern__launch_listen(tern__launch *launch, tern_error *err)
{
    tern__bootstrap boot;
    int status = make_seed(launch, err);
    if (!status) status = tern__launch_place(launch, 0, &boot, err);
    if (status) return status;
    tern__close(&launch->listen_fd);
    launch->listen_fd = tern__listen(&boot, err);
    if (launch->listen_fd < 0) return launch->listen_fd;
    launch->meet_port = tern__port_of(launch->listen_fd);
    return TERN_OK;
}

int tern__launch_open(tern__launch *launch, tern_error *err)
{
    int status = tern__launch_reserve(launch, err);
    return status ? status : tern__launch_listen(launch, err);
}

void tern__launch_close(tern__launch *launch)
{
    tern__close(&launch->listen_fd);
    tern__close(&launch->reserve_fd);
    sodium_memzero(launch->key, sizeof(launch->key));
    sodium_memzero(launch->seed, sizeof(launch->seed));
}

/* ---- the environment: torchrun's names and values ---- */

static int put_variable(const char *name, const char *value)
{
    return setenv(name, value, 1);
}

static int put_int(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return put_variable(name, text);
}

static int put_numbers(const tern__launch *launch, int local)
{
    return put_int("RANK", launch->first + local) || put_int("WORLD_SIZE", launch->world) ||
           put_int("LOCAL_RANK", local) || put_int("LOCAL_WORLD_SIZE", launch->ranks) ||
           put_int("ROLE_RANK", launch->role_first + local) ||
           put_int("ROLE_WORLD_SIZE", launch->role_world) || put_int("GROUP_RANK", launch->node) ||
           put_int("GROUP_WORLD_SIZE", launch->nodes);
}

/* Node 0's own ranks get the address where it listens: they may be unable to use the one for other nodes. */
static int put_torchrun(const tern__launch *launch, int local)
{
    return put_numbers(launch, local) || put_variable("ROLE_NAME", launch->role) ||
           put_variable("MASTER_ADDR", launch->node ? launch->addr : listening_addr(launch)) ||
           put_int("MASTER_PORT", launch->port) || put_int("TORCHELASTIC_RESTART_COUNT", launch->attempt) ||
           put_int("TORCHELASTIC_MAX_RESTARTS", launch->max_restarts) ||
           put_variable("TORCHELASTIC_RUN_ID", launch->run_id) ||
           put_variable("TORCHELASTIC_USE_AGENT_STORE", "False") ||
           setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 0);
}

static int put_secret(const tern__launch *launch)
{
    uint8_t bytes[crypto_auth_hmacsha256_BYTES];
    char text[2 * sizeof(bytes) + 1];
    crypto_auth_hmacsha256(bytes, launch->seed, sizeof(launch->seed), launch->key);
    sodium_bin2hex(text, sizeof(text), bytes, sizeof(bytes));
    return put_variable(TERN__ENV_SECRET, text);
}

int tern__launch_threads(const tern__launch *launch)
{
    const char *text = getenv("OMP_NUM_THREADS");
    return TERN__MAX(1, text ? atoi(text) : tern__device_cores() / launch->ranks);
}

static int put_environment(const tern__launch *launch, int local)
{
    if (put_torchrun(launch, local) || put_secret(launch) || put_int(TERN__ENV_PORT, launch->meet_port))
        return -1;
    if (launch->first + local == 0 ? put_int(TERN__ENV_LISTEN_FD, launch->listen_fd)
                                   : unsetenv(TERN__ENV_LISTEN_FD))
        return -1;
    if (getenv("OMP_NUM_THREADS")) return 0;
    return put_int("OMP_NUM_THREADS", tern__launch_threads(launch));
}

/* ---- in the child ---- */

/* getppid finds out whether the parent died before prctl. */
static int die_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) return -1;
    if (getppid() != parent) _exit(128 + SIGKILL);
    return 0;
}

/* Only rank 0 keeps the listening socket, also across exec: if it dies, its peers' connections are refused
 * and they need not wait. The launchers of other nodes have neither descriptor. */
static int keep_descriptors(const tern__launch *launch, int local)
{
    if (launch->node) return 0;
    close(launch->reserve_fd);
    return local == 0 ? fcntl(launch->listen_fd, F_SETFD, 0) : close(launch->listen_fd);
}

int tern__launch_enter(const tern__launch *launch, int local, pid_t parent)
{
    return die_with(parent) || keep_descriptors(launch, local) || put_environment(launch, local) ? -1 : 0;
}

/* ---- exit statuses ---- */

int tern__launch_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

const char *tern__signal_text(int number, char text[TERN__SIGNAL_TEXT])
{
    const char *name = sigabbrev_np(number);
    if (name)
        snprintf(text, TERN__SIGNAL_TEXT, "SIG%s", name);
    else
        snprintf(text, TERN__SIGNAL_TEXT, "SIGRTMIN%+d", number - SIGRTMIN);
    return text;
}

void tern__launch_describe(int rank, pid_t pid, int status, char *text, size_t size)
{
    char name[TERN__SIGNAL_TEXT];
    if (WIFSIGNALED(status))
        snprintf(text, size, "rank %d (pid %d) was killed by signal %d (%s)", rank, (int)pid,
                 WTERMSIG(status), tern__signal_text(WTERMSIG(status), name));
    else
        snprintf(text, size, "rank %d (pid %d) exited with code %d", rank, (int)pid, WEXITSTATUS(status));
}
