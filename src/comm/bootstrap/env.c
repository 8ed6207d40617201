/* env.c - reads torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; and what all sources
 * share. */
#include "comm/bootstrap/inner.h"

#include "base/local.h"
#include "comm/store/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char tern__boot_func[] = "tern_group_open";

/* ---- what the sources share ---- */

int tern__boot_addr(tern__bootstrap *out, const char *name, const char *text, size_t bytes, tern_error *err)
{
    if (bytes >= sizeof(out->addr))
        return tern__error_set(err, tern__boot_func, TERN_E_ENV,
                               "%s=\"%.32s...\" has %zu characters, at most %zu fit", name, text, bytes,
                               sizeof(out->addr) - 1);
    memcpy(out->addr, text, bytes);
    out->addr[bytes] = '\0';
    return TERN_OK;
}

/* The caller's own numbers. Until they are counted, all ranks are taken to be on one host. */
static int read_given(tern__bootstrap *out, tern_error *err)
{
    int rank = out->local_rank, world = out->local_world;
    out->is_placed = world != 0;
    if (world < 0 || world > out->world || (world && (rank < 0 || rank >= world)))
        return tern__error_set(err, tern__boot_func, TERN_E_RANGE,
                               "local_rank %d of a local_world of %d, in a world of %d ranks", rank, world,
                               out->world);
    if (world) return TERN_OK;
    out->local_rank = out->rank;
    out->local_world = out->world;
    return TERN_OK;
}

int tern__boot_local(tern__bootstrap *out, tern_error *err)
{
    tern__local local = {.rank = out->rank, .world = out->world};
    if (out->is_local_given) return read_given(out, err);
    int status = tern__local_of_run(&local, out->world, err);
    out->local_rank = local.rank;
    out->local_world = local.world;
    out->is_placed = getenv("LOCAL_RANK") != NULL;
    return status;
}

/* ---- torchrun's variables ---- */

static int fail_variable(const char *name, tern_error *err)
{
    return tern__error_set(err, tern__boot_func, TERN_E_ENV, "%s is not set, but init_method env:// needs it",
                           name);
}

/* One of the two alone is an error. (With env:// the other one may be in the options.) */
static int check_both(tern_error *err)
{
    const char *rank = getenv("RANK"), *world = getenv("WORLD_SIZE");
    if (!rank == !world) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_ENV,
                           "%s=\"%s\" is set but %s is not: set both or neither",
                           rank ? "RANK" : "WORLD_SIZE", rank ? rank : world, rank ? "WORLD_SIZE" : "RANK");
}

static int read_ranks(tern__bootstrap *out, int rank, int world, tern_error *err)
{
    out->rank = rank;
    out->world = world;
    if (world < 0 && tern__env_filled_int("WORLD_SIZE", 1, TERN__WORLD_MAX, 1, &out->world, err))
        return err->code;
    if (rank < 0 && tern__env_filled_int("RANK", 0, INT_MAX, 0, &out->rank, err)) return err->code;
    if (out->rank < out->world) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_ENV, "RANK=%d is not below WORLD_SIZE=%d", out->rank,
                           out->world);
}

static bool is_set_to(const char *name, const char *value)
{
    const char *is = tern__env(name);
    return is && !strcmp(is, value);
}

/* True if the environment says that the agent serves a store and boot has the agent's address and port. */
bool tern__boot_is_agents(const tern__bootstrap *boot)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", boot->port);
    return is_set_to("TORCHELASTIC_USE_AGENT_STORE", "True") && is_set_to("MASTER_ADDR", boot->addr) &&
           is_set_to("MASTER_PORT", port);
}

/* A group of one rank needs no address, but a malformed one is still an error. */
static int read_master(tern__bootstrap *out, tern_error *err)
{
    if (tern__env_filled("MASTER_ADDR", err)) return err->code;
    if (tern__env_filled_int("MASTER_PORT", 1, 65535, 0, &out->port, err)) return err->code;
    if (tern__env_filled_int(TERN__ENV_PORT, 1, 65535, out->port, &out->port, err)) return err->code;
    const char *addr = tern__env("MASTER_ADDR");
    if (out->world > 1 && (!addr || !out->port))
        return tern__error_set(err, tern__boot_func, TERN_E_ENV,
                               "%s is not set, but WORLD_SIZE=%d ranks need it to meet",
                               addr ? "MASTER_PORT" : "MASTER_ADDR", out->world);
    if (addr && tern__boot_addr(out, "MASTER_ADDR", addr, strlen(addr), err)) return err->code;
    out->by_agent = tern__boot_is_agents(out);
    return TERN_OK;
}

/* Reads the descriptor that rank 0 inherits from tern run. A program in between may have closed it. */
static int read_listen_fd(tern__bootstrap *out, tern_error *err)
{
    const char *text = getenv(TERN__ENV_LISTEN_FD);
    if (!text || out->rank != 0) return TERN_OK;
    char *end;
    errno = 0;
    long fd = strtol(text, &end, 10);
    if (errno || end == text || *end || fd < 0 || fd > INT_MAX)
        return tern__error_set(err, tern__boot_func, TERN_E_ENV,
                               TERN__ENV_LISTEN_FD "=\"%s\" is not a descriptor", text);
    out->lost_listener = !tern__listens_at((int)fd, out->port);
    if (out->lost_listener) return TERN_OK;
    if (fcntl((int)fd, F_SETFD, FD_CLOEXEC))
        return tern__error_errno(err, tern__boot_func, TERN_E_SYSTEM,
                                 "cannot set close-on-exec on descriptor %ld", fd);
    out->listen_fd = (int)fd;
    return TERN_OK;
}

static int read_all(tern__bootstrap *out, int rank, int world, tern_error *err)
{
    int status = read_ranks(out, rank, world, err);
    if (!status) status = tern__boot_local(out, err);
    if (!status) status = read_master(out, err);
    if (!status) status = read_listen_fd(out, err);
    if (!status) out->source = "RANK/WORLD_SIZE";
    out->by_launcher = !status && rank < 0 && world < 0 && out->is_placed;
    return status;
}

int tern__bootstrap_from_ranks(tern__bootstrap *out, bool *found, tern_error *err)
{
    *found = getenv("RANK") || getenv("WORLD_SIZE");
    if (!*found) return TERN_OK;
    int status = check_both(err);
    return status ? status : read_all(out, -1, -1, err);
}

int tern__bootstrap_env_method(tern__bootstrap *out, int rank, int world, tern_error *err)
{
    if (rank < 0 && !getenv("RANK")) return fail_variable("RANK", err);
    if (world < 0 && !getenv("WORLD_SIZE")) return fail_variable("WORLD_SIZE", err);
    return read_all(out, rank, world, err);
}
