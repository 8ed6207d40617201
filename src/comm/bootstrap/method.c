/* method.c - parses an init_method, scheme://place?rank=R&world_size=W as in PyTorch, and the group's
 * options. */
#include "comm/bootstrap/inner.h"
#include "comm/bootstrap/mpi.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct method {
    const char *text;
    const char *place; /* in `text`, `place_bytes` long */
    size_t place_bytes;
    int rank, world; /* -1: not given */
} method;

static int fail_method(const method *m, const char *what, tern_error *err)
{
    return tern__error_set(err, tern__boot_func, TERN_E_INVALID, "init_method \"%.200s\": %s", m->text, what);
}

/* ---- rank=R&world_size=W ---- */

static int read_number(const method *m, const char *name, const char *text, size_t bytes, int low, int *out,
                       tern_error *err)
{
    char digits[16] = "", *end = digits;
    if (bytes < sizeof(digits)) memcpy(digits, text, bytes);
    errno = 0;
    long value = strtol(digits, &end, 10);
    if (errno || end == digits || *end || value < low || value > INT_MAX)
        return tern__error_set(err, tern__boot_func, TERN_E_INVALID,
                               "init_method \"%.200s\": %s=%.*s is not an integer from %d", m->text, name,
                               (int)TERN__MIN(bytes, 40), text, low);
    *out = (int)value;
    return TERN_OK;
}

/* Reads one name=value; use_libuv matters only to PyTorch and is ignored. */
static int read_pair(method *m, const char *pair, size_t bytes, tern_error *err)
{
    static const char rank[] = "rank=", world[] = "world_size=", libuv[] = "use_libuv=";
    if (!strncmp(pair, rank, strlen(rank)))
        return read_number(m, "rank", pair + strlen(rank), bytes - strlen(rank), 0, &m->rank, err);
    if (!strncmp(pair, world, strlen(world)))
        return read_number(m, "world_size", pair + strlen(world), bytes - strlen(world), 1, &m->world, err);
    if (!bytes || !strncmp(pair, libuv, strlen(libuv))) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_INVALID,
                           "init_method \"%.200s\": \"%.*s\" is neither rank=R nor world_size=W", m->text,
                           (int)TERN__MIN(bytes, 40), pair);
}

static int read_query(method *m, const char *query, tern_error *err)
{
    int status = TERN_OK;
    for (const char *at = query; *at && !status;) {
        size_t bytes = strcspn(at, "&");
        status = read_pair(m, at, bytes, err);
        at += bytes + (at[bytes] == '&');
    }
    return status;
}

/* Merges the rank and world of the options into those of the query; neither may be given in both. */
static int join_opts(method *m, const tern_group_opts *opts, tern_error *err)
{
    if (opts->rank < -1 || opts->world < -1 || opts->world == 0)
        return tern__error_set(err, tern__boot_func, TERN_E_RANGE,
                               "rank %d of a world of %d: expected a rank from 0 and a world from 1, or -1",
                               opts->rank, opts->world);
    if ((opts->rank >= 0 && m->rank >= 0) || (opts->world >= 0 && m->world >= 0))
        return fail_method(
            m, "it contains rank or world_size, and the options set the same one: give it once", err);
    if (opts->rank >= 0) m->rank = opts->rank;
    if (opts->world >= 0) m->world = opts->world;
    if (m->rank < 0 || m->world < 0 || m->rank < m->world) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_RANGE, "rank %d is not below the world's size, %d",
                           m->rank, m->world);
}

static int check_ranks(const method *m, tern_error *err)
{
    if (m->rank < 0) return fail_method(m, "rank parameter missing (\"?rank=R\", or the options' rank)", err);
    if (m->world < 0)
        return fail_method(m, "world_size parameter missing (\"?world_size=W\", or the options' world)", err);
    return TERN_OK;
}

/* ---- the methods ---- */

static int read_env(const method *m, tern__bootstrap *out, tern_error *err)
{
    if (m->place_bytes) return fail_method(m, "env:// may only be followed by \"?rank=R&world_size=W\"", err);
    return tern__bootstrap_env_method(out, m->rank, m->world, err);
}

/* Reads the host from "host", "[::1]" or "::1". */
static int read_host(const method *m, tern__bootstrap *out, size_t bytes, tern_error *err)
{
    const char *host = m->place;
    if (bytes >= 2 && host[0] == '[' && host[bytes - 1] == ']') {
        host++;
        bytes -= 2;
    }
    if (!bytes) return fail_method(m, "host name missing", err);
    return tern__boot_addr(out, "init_method", host, bytes, err);
}

static int read_port(const method *m, const char *text, size_t bytes, int *port, tern_error *err)
{
    int status = read_number(m, "port", text, bytes, 1, port, err);
    return !status && *port > 65535 ? fail_method(m, "the port is above 65535", err) : status;
}

static int read_tcp(const method *m, tern__bootstrap *out, tern_error *err)
{
    size_t bytes = m->place_bytes;
    if (bytes && m->place[bytes - 1] == '/') bytes--;
    const char *colon = memrchr(m->place, ':', bytes), *bracket = memrchr(m->place, ']', bytes);
    if (!colon || (bracket && bracket > colon)) return fail_method(m, "port number missing", err);
    size_t host = (size_t)(colon - m->place);
    int status = check_ranks(m, err);
    if (!status) status = read_host(m, out, host, err);
    if (!status) status = read_port(m, colon + 1, bytes - host - 1, &out->port, err);
    out->rank = m->rank;
    out->world = m->world;
    out->source = "tcp://";
    out->by_agent = tern__boot_is_agents(out);
    return status ? status : tern__boot_local(out, err);
}

/* Reads file:///path. A relative path could be a different file on every rank. */
static int read_file(const method *m, tern__bootstrap *out, tern_error *err)
{
    if (!m->place_bytes || *m->place != '/')
        return fail_method(m, "path missing: expected file:///path", err);
    int status = check_ranks(m, err);
    out->rank = m->rank;
    out->world = m->world;
    out->file = m->place;
    out->file_bytes = m->place_bytes;
    out->source = "file://";
    return status ? status : tern__boot_local(out, err);
}

static int read_store(tern__bootstrap *out, const tern_group_opts *opts, tern_error *err)
{
    if (opts->init_method)
        return tern__error_set(err, tern__boot_func, TERN_E_INVALID,
                               "init_method \"%.200s\" and a store are both given: they exclude each other",
                               opts->init_method);
    if (opts->rank < 0 || opts->world < 1 || opts->rank >= opts->world)
        return tern__error_set(err, tern__boot_func, TERN_E_INVALID,
                               "a store needs the rank and the world, too: got rank %d of %d", opts->rank,
                               opts->world);
    out->rank = opts->rank;
    out->world = opts->world;
    out->store = opts->store;
    out->source = "store";
    return tern__boot_local(out, err);
}

static const struct {
    const char *scheme;
    int (*read)(const method *m, tern__bootstrap *out, tern_error *err);
} methods[] = {{"env://", read_env}, {"tcp://", read_tcp}, {"file://", read_file}};

static int read_method(method *m, const tern_group_opts *opts, tern__bootstrap *out, tern_error *err)
{
    for (size_t i = 0; i < TERN__COUNT(methods); i++) {
        size_t bytes = strlen(methods[i].scheme);
        if (strncmp(m->text, methods[i].scheme, bytes) != 0) continue;
        m->place = m->text + bytes;
        m->place_bytes = strcspn(m->place, "?");
        const char *query = m->place + m->place_bytes;
        int status = read_query(m, query + (*query == '?'), err);
        if (!status) status = join_opts(m, opts, err);
        return status ? status : methods[i].read(m, out, err);
    }
    return fail_method(m, "expected env://, tcp://host:port or file:///path", err);
}

/* The world given by the environment has been checked already. */
static int check_world(const tern__bootstrap *boot, tern_error *err)
{
    if (boot->world <= TERN__WORLD_MAX) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_RANGE, "a world of %d ranks (%s), at most %d fit",
                           boot->world, boot->source, TERN__WORLD_MAX);
}

static int read_methods(tern__bootstrap *out, const tern_group_opts *opts, tern_error *err)
{
    method m = {.text = opts->init_method ? opts->init_method : "env://", .rank = -1, .world = -1};
    tern_error why = {0};
    int status = tern__boot_start(out, &why);
    out->is_local_given = opts->local_rank != -1 || opts->local_world != -1;
    if (out->is_local_given) {
        out->local_rank = opts->local_rank;
        out->local_world = opts->local_world;
    }
    if (!status) status = opts->store ? read_store(out, opts, &why) : read_method(&m, opts, out, &why);
    if (!status) status = check_world(out, &why);
    return tern__boot_finish(status, out, &why, err);
}

int tern__bootstrap_read(tern__bootstrap *out, const tern_group_opts *opts, tern_error *err)
{
    bool says_nothing = !opts->init_method && !opts->store && opts->rank == -1 && opts->world == -1 &&
                        opts->local_rank == -1 && opts->local_world == -1;
    int status = says_nothing ? tern__bootstrap_from_env(out, err) : read_methods(out, opts, err);
    if (!status && out->by_mpi) status = tern__mpi_meet_world(out, opts->connect_timeout_s, err);
    return status ? status : tern__boot_meet(out, opts->connect_timeout_s, err);
}
