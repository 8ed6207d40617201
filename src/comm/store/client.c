#include "comm/store/store.h"

#include "comm/store/hello.h"
#include "comm/store/listen.h"
#include "comm/store/server.h"
#include "comm/store/wire.h"
#include "comm/sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";

struct tern__store {
    tern__server *server; /* rank 0's */
    int fd;               /* -1 once the connection has failed: what would follow on it is unknown */
    double timeout_s;     /* for an answer that needs no waiting */
    char where[300];
};

tern__store *tern__store_open(const tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    if (tern__is_set(err) || tern__hello_init(err)) return NULL;
    tern__store *store = tern__alloc(sizeof(*store), func, err);
    if (!store) return NULL;
    int64_t deadline = tern__deadline(timeout_s);
    *store = (tern__store){.fd = -1, .timeout_s = timeout_s};
    snprintf(store->where, sizeof(store->where), "rank 0's store at %s port %d", boot->addr, boot->port);
    bool serves = boot->rank != 0 || (store->server = tern__server_start(boot, err)) != NULL;
    if (serves && (store->fd = tern__dial(boot, deadline, err)) >= 0) return store;
    tern__store_close(store);
    return NULL;
}

void tern__store_close(tern__store *store)
{
    if (!store) return;
    tern__close(&store->fd);
    tern__server_stop(store->server);
    tern__free(store);
}

/* ---- pieces of a query ---- */

/* After -ETIMEDOUT in the middle of a query, or a lost connection, nothing more can be said on it. */
static int fail(tern__store *store, int native, const char *key, tern_error *err)
{
    tern__close(&store->fd);
    errno = -native;
    if (native == -ETIMEDOUT)
        return tern__error_errno(err, func, TERN_E_TIMEOUT, "%s does not answer (key \"%s\")", store->where,
                                 key);
    return tern__error_errno(err, func, TERN_E_PEER, "%s is gone (key \"%s\")", store->where, key);
}

static int64_t answer_deadline(const tern__store *store)
{
    return tern__deadline(store->timeout_s);
}

static int check_key(const tern__store *store, const char *key, size_t value_bytes, tern_error *err)
{
    if (store->fd < 0)
        return tern__error_set(err, func, TERN_E_PEER, "the connection to %s was lost", store->where);
    if (strlen(key) > TERN__STORE_KEY_MAX)
        return tern__error_set(err, func, TERN_E_INVALID, "key of %zu bytes, at most %d fit", strlen(key),
                               TERN__STORE_KEY_MAX);
    if (value_bytes > TERN__STORE_VALUE_MAX)
        return tern__error_set(err, func, TERN_E_INVALID, "value of key \"%s\" has %zu bytes, at most %u fit",
                               key, value_bytes, TERN__STORE_VALUE_MAX);
    return TERN_OK;
}

/* Code, number of keys (CHECK and WAIT), key: 0 or -errno. */
static int send_query(tern__store *store, uint8_t code, const char *key, int64_t deadline)
{
    uint8_t head[1 + 8 + 8];
    uint64_t one = 1, length = strlen(key);
    size_t used = 0;
    head[used++] = code;
    if (code == TERN__QUERY_CHECK || code == TERN__QUERY_WAIT) {
        memcpy(head + used, &one, sizeof(one));
        used += sizeof(one);
    }
    memcpy(head + used, &length, sizeof(length));
    used += sizeof(length);
    int status = tern__send_all(store->fd, head, used, deadline);
    return status ? status : tern__send_all(store->fd, key, length, deadline);
}

/* ---- queries ---- */

int tern__store_set(tern__store *store, const char *key, const void *value, size_t bytes, tern_error *err)
{
    int invalid = check_key(store, key, bytes, err);
    if (invalid) return invalid;
    int64_t deadline = answer_deadline(store);
    uint64_t length = bytes;
    int status = send_query(store, TERN__QUERY_SET, key, deadline);
    if (!status) status = tern__send_all(store->fd, &length, sizeof(length), deadline);
    if (!status) status = tern__send_all(store->fd, value, bytes, deadline);
    return status ? fail(store, status, key, err) : TERN_OK;
}

int tern__store_add(tern__store *store, const char *key, int64_t delta, int64_t *sum, tern_error *err)
{
    int invalid = check_key(store, key, 0, err);
    if (invalid) return invalid;
    int64_t deadline = answer_deadline(store);
    int status = send_query(store, TERN__QUERY_ADD, key, deadline);
    if (!status) status = tern__send_all(store->fd, &delta, sizeof(delta), deadline);
    if (!status) status = tern__recv_all(store->fd, sum, sizeof(*sum), deadline);
    return status ? fail(store, status, key, err) : TERN_OK;
}

int tern__store_check(tern__store *store, const char *key, tern_error *err)
{
    int invalid = check_key(store, key, 0, err);
    if (invalid) return invalid;
    int64_t deadline = answer_deadline(store);
    uint8_t reply;
    int status = send_query(store, TERN__QUERY_CHECK, key, deadline);
    if (!status) status = tern__recv_all(store->fd, &reply, sizeof(reply), deadline);
    if (status) return fail(store, status, key, err);
    return reply == TERN__CHECK_READY;
}

/* A canceled wait answers once or twice: DONE if the key came just before the cancel, and in any case
 * CANCELED. */
static int cancel_wait(tern__store *store)
{
    int64_t deadline = answer_deadline(store);
    uint8_t code = TERN__QUERY_CANCEL_WAIT, reply = TERN__WAIT_DONE;
    int status = tern__send_all(store->fd, &code, sizeof(code), deadline);
    while (!status && reply != TERN__WAIT_CANCELED)
        status = tern__recv_all(store->fd, &reply, sizeof(reply), deadline);
    return status;
}

static int wait_for(tern__store *store, const char *key, double timeout_s, tern_error *err)
{
    uint8_t reply;
    int64_t deadline = tern__deadline(timeout_s);
    int status = send_query(store, TERN__QUERY_WAIT, key, answer_deadline(store));
    if (!status) status = tern__recv_all(store->fd, &reply, sizeof(reply), deadline);
    if (status == -ETIMEDOUT) {
        status = cancel_wait(store);
        if (!status)
            return tern__error_set(err, func, TERN_E_TIMEOUT, "nobody set key \"%s\" in %s within %.3g s",
                                   key, store->where, timeout_s);
    }
    return status ? fail(store, status, key, err) : TERN_OK;
}

/* Reads a value of `length` bytes: the first `cap` into `value`, the rest into nowhere. */
static int receive_value(tern__store *store, void *value, size_t cap, uint64_t length, int64_t deadline)
{
    uint8_t rest[4096];
    size_t kept = TERN__MIN((size_t)length, cap);
    int status = tern__recv_all(store->fd, value, kept, deadline);
    for (uint64_t left = length - kept; left && !status;) {
        size_t piece = TERN__MIN((size_t)left, sizeof(rest));
        status = tern__recv_all(store->fd, rest, piece, deadline);
        left -= piece;
    }
    return status;
}

int tern__store_get(tern__store *store, const char *key, void *value, size_t cap, size_t *bytes,
                    double timeout_s, tern_error *err)
{
    int failed = check_key(store, key, 0, err);
    if (!failed) failed = wait_for(store, key, timeout_s, err);
    if (failed) return failed;
    uint64_t length = 0;
    int64_t deadline = answer_deadline(store);
    int status = send_query(store, TERN__QUERY_GET, key, deadline);
    if (!status) status = tern__recv_all(store->fd, &length, sizeof(length), deadline);
    if (!status && length > TERN__STORE_VALUE_MAX) status = -EPROTO;
    if (!status) status = receive_value(store, value, cap, length, deadline);
    if (status) return fail(store, status, key, err);
    *bytes = (size_t)length;
    return TERN_OK;
}
