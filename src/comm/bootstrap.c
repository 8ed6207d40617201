#include "comm/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char func[] = "tern_group_open";

/* An empty variable is a mistake of whoever set it, never "unset". */
static int check_not_empty(const char *name, tern_error *err)
{
    const char *value = getenv(name);
    if (!value || *value) return TERN_OK;
    return tern__error_set(err, func, TERN_E_ENV, "%s=\"\" is set but empty", name);
}

static int read_int(const char *name, long low, long high, long fallback, int *out, tern_error *err)
{
    long value;
    int status = check_not_empty(name, err);
    if (!status) status = tern__env_int(name, low, high, fallback, &value, err);
    if (!status) *out = (int)value;
    return status;
}

/* Copies a variable into `text` and takes it out of the environment, its bytes too: /proc/PID/environ shows
 * them. */
static bool take(const char *name, char *text, size_t size)
{
    char *value = getenv(name);
    if (!value) return false;
    size_t length = strnlen(value, size - 1);
    memcpy(text, value, length);
    text[length] = '\0';
    sodium_memzero(value, strlen(value));
    unsetenv(name);
    return true;
}

/* The value itself is a secret: an error does not show it. */
static int parse_secret(const char *text, tern__bootstrap *out, tern_error *err)
{
    size_t bytes = 0, length = strlen(text);
    bool all = length == 2 * TERN__SECRET_BYTES &&
               sodium_hex2bin(out->secret, sizeof(out->secret), text, length, NULL, &bytes, NULL) == 0;
    if (!all || bytes != sizeof(out->secret))
        return tern__error_set(err, func, TERN_E_ENV,
                               TERN__ENV_SECRET " is not %d hex digits (its value is not shown)",
                               2 * TERN__SECRET_BYTES);
    out->has_secret = true;
    return TERN_OK;
}

static int parse_listen_fd(const char *text, tern__bootstrap *out, tern_error *err)
{
    char *end;
    errno = 0;
    long fd = strtol(text, &end, 10);
    if (errno || end == text || *end || fd < 0 || fd > INT_MAX)
        return tern__error_set(err, func, TERN_E_ENV, TERN__ENV_LISTEN_FD "=\"%s\" is not a descriptor",
                               text);
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) || !listens)
        return tern__error_set(err, func, TERN_E_ENV, TERN__ENV_LISTEN_FD "=%ld is not a listening socket",
                               fd);
    if (fcntl((int)fd, F_SETFD, FD_CLOEXEC))
        return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot set close-on-exec on descriptor %ld", fd);
    out->listen_fd = (int)fd;
    return TERN_OK;
}

static int read_ranks(tern__bootstrap *out, tern_error *err)
{
    const char *rank = getenv("RANK"), *world = getenv("WORLD_SIZE");
    if (!rank != !world)
        return tern__error_set(err, func, TERN_E_ENV, "%s=\"%s\" is set but %s is not: set both or neither",
                               rank ? "RANK" : "WORLD_SIZE", rank ? rank : world,
                               rank ? "WORLD_SIZE" : "RANK");
    if (read_int("WORLD_SIZE", 1, INT_MAX, 1, &out->world, err)) return err->code;
    if (read_int("RANK", 0, INT_MAX, 0, &out->rank, err)) return err->code;
    if (out->rank >= out->world)
        return tern__error_set(err, func, TERN_E_ENV, "RANK=%d is not below WORLD_SIZE=%d", out->rank,
                               out->world);
    return TERN_OK;
}

/* Without LOCAL_* all ranks are taken to be on one host. */
static int read_local(tern__bootstrap *out, tern_error *err)
{
    if (read_int("LOCAL_WORLD_SIZE", 1, out->world, out->world, &out->local_world, err)) return err->code;
    if (read_int("LOCAL_RANK", 0, INT_MAX, out->rank, &out->local_rank, err)) return err->code;
    if (out->local_rank < out->local_world) return TERN_OK;
    if (!getenv("LOCAL_RANK"))
        return tern__error_set(
            err, func, TERN_E_ENV,
            "LOCAL_WORLD_SIZE=%d is set but LOCAL_RANK is not, and RANK=%d is no local rank",
            out->local_world, out->rank);
    return tern__error_set(err, func, TERN_E_ENV, "LOCAL_RANK=%d is not below LOCAL_WORLD_SIZE=%d",
                           out->local_rank, out->local_world);
}

/* torchrun's agent often keeps a store of its own at MASTER_PORT, and then says so: the port beside it. */
static int beside_agent(int port)
{
    const char *agent = tern__env("TORCHELASTIC_USE_AGENT_STORE");
    if (!port || !agent || strcmp(agent, "True") != 0) return port;
    return port < 65535 ? port + 1 : port - 1;
}

/* A group of one needs no meeting point, but a malformed one is still a mistake. */
static int read_master(tern__bootstrap *out, tern_error *err)
{
    if (check_not_empty("MASTER_ADDR", err)) return err->code;
    if (read_int("MASTER_PORT", 1, 65535, 0, &out->port, err)) return err->code;
    if (read_int(TERN__ENV_PORT, 1, 65535, beside_agent(out->port), &out->port, err)) return err->code;
    const char *addr = tern__env("MASTER_ADDR");
    if (out->world > 1 && (!addr || !out->port))
        return tern__error_set(err, func, TERN_E_ENV,
                               "%s is not set, but WORLD_SIZE=%d ranks need it to meet",
                               addr ? "MASTER_PORT" : "MASTER_ADDR", out->world);
    if (!addr) return TERN_OK;
    if (strlen(addr) >= sizeof(out->addr))
        return tern__error_set(err, func, TERN_E_ENV,
                               "MASTER_ADDR=\"%.32s...\" has %zu characters, at most %zu fit", addr,
                               strlen(addr), sizeof(out->addr) - 1);
    memcpy(out->addr, addr, strlen(addr) + 1);
    return TERN_OK;
}

static int read_ranked(tern__bootstrap *out, const char *listen_fd, tern_error *err)
{
    int status = read_ranks(out, err);
    if (!status) status = read_local(out, err);
    if (!status) status = read_master(out, err);
    if (!status && listen_fd && out->rank == 0) status = parse_listen_fd(listen_fd, out, err);
    if (!status) out->source = "RANK/WORLD_SIZE";
    return status;
}

/* The secret leaves the environment with the first group, and this process may open more: the one thing of
 * the environment that is remembered. */
static struct {
    pthread_mutex_t lock;
    bool is_known;
    uint8_t bytes[TERN__SECRET_BYTES];
} job_secret = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void remember_secret(tern__bootstrap *out)
{
    pthread_mutex_lock(&job_secret.lock);
    if (out->has_secret) memcpy(job_secret.bytes, out->secret, sizeof(job_secret.bytes));
    job_secret.is_known |= out->has_secret;
    if (job_secret.is_known) memcpy(out->secret, job_secret.bytes, sizeof(out->secret));
    out->has_secret = job_secret.is_known;
    pthread_mutex_unlock(&job_secret.lock);
}

int tern__bootstrap_from_env(tern__bootstrap *out, tern_error *err)
{
    tern_error local = {0};
    char secret[2 * TERN__SECRET_BYTES + 2], listen_fd[32];
    *out = (tern__bootstrap){.world = 1, .local_world = 1, .listen_fd = -1, .source = "alone"};
    bool has_secret = take(TERN__ENV_SECRET, secret, sizeof(secret));
    bool has_listen = take(TERN__ENV_LISTEN_FD, listen_fd, sizeof(listen_fd));
    int status = has_secret ? parse_secret(secret, out, &local) : TERN_OK;
    sodium_memzero(secret, sizeof(secret));
    if (!status) remember_secret(out);
    if (!status && (getenv("RANK") || getenv("WORLD_SIZE")))
        status = read_ranked(out, has_listen ? listen_fd : NULL, &local);
    return status ? tern__error_set(err, func, status, "%s", local.text) : TERN_OK;
}
