/* hash.c - a store in this process: a table under one lock, which the store's clones share. All waiting calls
 * sleep on one condition variable, which is signalled when any waiter of the table wakes. */
#include "comm/store/query.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include <stdio.h>

typedef struct shared {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    tern__table *table;
    int users;
} shared;

typedef struct hash_store {
    tern_store base;
    shared *shared;
} hash_store;

static const tern__store_ops ops;

static shared *shared_new(const char *func, tern_error *err)
{
    shared *s = tern__alloc(sizeof(*s), func, err);
    if (!s) return NULL;
    s->table = tern__table_new(TERN__STORE_KEYS_MAX, TERN__STORE_BYTES_MAX, func, err);
    if (!s->table) {
        tern__free(s);
        return NULL;
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->woken, &clock);
    pthread_condattr_destroy(&clock);
    return s;
}

static void shared_leave(shared *s)
{
    pthread_mutex_lock(&s->lock);
    bool last = --s->users == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->woken);
    tern__table_free(s->table);
    tern__free(s);
}

static void shared_enter(shared *s)
{
    pthread_mutex_lock(&s->lock);
    s->users++;
    pthread_mutex_unlock(&s->lock);
}

static tern_store *open_on(shared *s, const char *func, tern_error *err)
{
    shared_enter(s);
    hash_store *store = tern__alloc(sizeof(*store), func, err);
    if (!store || tern__store_init(&store->base, &ops, "", func, err)) {
        tern__free(store);
        shared_leave(s);
        return NULL;
    }
    store->shared = s;
    snprintf(store->base.where, sizeof(store->base.where), "the hash store");
    return &store->base;
}

tern_store *tern_store_hash_new(tern_error *err)
{
    shared *s = tern__is_set(err) ? NULL : shared_new(__func__, err);
    return s ? open_on(s, __func__, err) : NULL;
}

static tern_store *hash_store_clone(tern_store *root, tern_error *err)
{
    return open_on(((hash_store *)root)->shared, "tern_store_clone", err);
}

static void hash_store_close(tern_store *root)
{
    shared_leave(((hash_store *)root)->shared);
}

/* Wakes all sleepers if a waiter was woken. Each looks whether it was its own. */
static void hash_tell(shared *s)
{
    if (!tern__table_woken(s->table)) return;
    while (tern__table_woken(s->table)) continue;
    pthread_cond_broadcast(&s->woken);
}

/* False at the deadline. */
static bool sleep_until(shared *s, const tern__key_waiter *waiter, int64_t deadline)
{
    struct timespec at = {deadline / 1000000000, deadline % 1000000000};
    while (waiter->at)
        if (pthread_cond_timedwait(&s->woken, &s->lock, &at) && waiter->at) return false;
    return true;
}

static int hash_ask(tern_store *root, tern__bytes query, int64_t deadline, tern__buffer *answer,
                    const char *func, tern_error *err)
{
    shared *s = ((hash_store *)root)->shared;
    tern__key_waiter waiter = {0};
    tern__query_result result;
    bool in_time = true;
    pthread_mutex_lock(&s->lock);
    do {
        result = tern__query_run(s->table, query.data, &waiter, answer);
        hash_tell(s);
        if (result == TERN__QUERY_BLOCKS) in_time = sleep_until(s, &waiter, deadline);
    } while (result == TERN__QUERY_BLOCKS && in_time);
    tern__table_leave(s->table, &waiter);
    pthread_mutex_unlock(&s->lock);
    if (!in_time) return TERN_E_TIMEOUT;
    if (result == TERN__QUERY_DONE) return TERN_OK;
    return tern__error_set(err, func, TERN_E_INVALID,
                           "%s cannot run this query: it is full, or the value is not an integer in range",
                           root->where);
}

static const tern__store_ops ops = {.ask = hash_ask, .clone = hash_store_clone, .close = hash_store_close};
