/* custom_store.h - a custom store whose functions pass everything on to another store, under one lock,
 * since clones call them from several threads. A call that waits looks again every millisecond. */
#ifndef TERN_TESTS_COMM_CUSTOM_STORE_H
#define TERN_TESTS_COMM_CUSTOM_STORE_H

#include "comm/sys.h"

#include <pthread.h>
#include <tern/store.h>
#include <unistd.h>

typedef struct relay {
    tern_store *to;
    pthread_mutex_t lock;
    int closed; /* calls of close */
} relay;

static inline int relay_set(void *ctx, const char *key, const void *value, size_t bytes, tern_error *err)
{
    relay *r = ctx;
    pthread_mutex_lock(&r->lock);
    int status = tern_store_set(r->to, key, value, bytes, err);
    pthread_mutex_unlock(&r->lock);
    return status;
}

static inline int relay_check(void *ctx, const char *const *keys, size_t count, tern_error *err)
{
    relay *r = ctx;
    pthread_mutex_lock(&r->lock);
    int all = tern_store_check(r->to, keys, count, err);
    pthread_mutex_unlock(&r->lock);
    return all;
}

static inline int relay_wait(void *ctx, const char *const *keys, size_t count, double timeout_s,
                             tern_error *err)
{
    int64_t deadline = tern__deadline(timeout_s);
    int all;
    while (!(all = relay_check(ctx, keys, count, err)) && tern__now_ns() < deadline) usleep(1000);
    return all < 0 ? all : all ? TERN_OK : tern_error_set(err, __func__, TERN_E_TIMEOUT, "too late");
}

static inline int relay_get(void *ctx, const char *key, double timeout_s, tern_store_answer *value,
                            tern_error *err)
{
    relay *r = ctx;
    size_t bytes;
    int status = relay_wait(ctx, &key, 1, timeout_s, err);
    if (status) return status;
    pthread_mutex_lock(&r->lock);
    const void *found = tern_store_get(r->to, key, &bytes, err);
    status = found ? tern_store_answer_set(value, found, bytes, err) : TERN_E_INVALID;
    pthread_mutex_unlock(&r->lock);
    return status;
}

static inline int relay_add(void *ctx, const char *key, int64_t delta, int64_t *sum, tern_error *err)
{
    relay *r = ctx;
    pthread_mutex_lock(&r->lock);
    int status = tern_store_add(r->to, key, delta, sum, err);
    pthread_mutex_unlock(&r->lock);
    return status;
}

static inline int relay_remove(void *ctx, const char *key, tern_error *err)
{
    relay *r = ctx;
    pthread_mutex_lock(&r->lock);
    int status = tern_store_delete(r->to, key, err);
    pthread_mutex_unlock(&r->lock);
    return status;
}

static inline int relay_compare_set(void *ctx, const char *key, tern_store_value expected,
                                    tern_store_value desired, tern_store_answer *now, tern_error *err)
{
    relay *r = ctx;
    tern_store_value value;
    pthread_mutex_lock(&r->lock);
    int status = tern_store_compare_set(r->to, key, expected, desired, &value, err);
    if (!status) status = tern_store_answer_set(now, value.data, value.bytes, err);
    pthread_mutex_unlock(&r->lock);
    return status;
}

static inline int relay_append(void *ctx, const char *key, const void *value, size_t bytes, tern_error *err)
{
    relay *r = ctx;
    pthread_mutex_lock(&r->lock);
    int status = tern_store_append(r->to, key, value, bytes, err);
    pthread_mutex_unlock(&r->lock);
    return status;
}

static inline int64_t relay_num_keys(void *ctx, tern_error *err)
{
    relay *r = ctx;
    pthread_mutex_lock(&r->lock);
    int64_t keys = tern_store_num_keys(r->to, err);
    pthread_mutex_unlock(&r->lock);
    return keys;
}

static inline void relay_close(void *ctx)
{
    ((relay *)ctx)->closed++;
}

static const tern_store_methods relay_methods = {.size = sizeof(relay_methods),
                                                 .set = relay_set,
                                                 .get = relay_get,
                                                 .add = relay_add,
                                                 .check = relay_check,
                                                 .wait = relay_wait,
                                                 .remove = relay_remove,
                                                 .compare_set = relay_compare_set,
                                                 .append = relay_append,
                                                 .num_keys = relay_num_keys,
                                                 .close = relay_close};

#endif
