/* store.c - the public functions of all stores: they encode a query, let the store's `ask` answer it, and
 * decode the answer. */
#include "comm/store/store.h"

#include "comm/store/frame.h"
#include "comm/sys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double default_timeout_s = 300;
static const double look_interval_s = 0.01; /* between looks at a queue whose key has a plain value */

int tern__store_init(tern_store *store, const tern__store_ops *ops, const char *prefix, const char *func,
                     tern_error *err)
{
    store->ops = ops;
    store->root = store;
    store->timeout_s = default_timeout_s;
    store->prefix_bytes = strlen(prefix);
    store->prefix = tern__strdup(prefix, func, err);
    return store->prefix ? TERN_OK : TERN_E_MEMORY;
}

tern_store *tern_store_prefix_new(const char *prefix, tern_store *base, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!prefix || !base) {
        tern__error_set(err, __func__, TERN_E_INVALID, "a prefix store needs a prefix and a store");
        return NULL;
    }
    size_t bytes = base->prefix_bytes + strlen(prefix) + 2;
    tern_store *store = tern__alloc(sizeof(*store), __func__, err);
    if (!store) return NULL;
    store->prefix = tern__alloc(bytes, __func__, err);
    if (!store->prefix) {
        tern__free(store);
        return NULL;
    }
    snprintf(store->prefix, bytes, "%s%s/", base->prefix, prefix);
    store->prefix_bytes = bytes - 1;
    store->root = base->root;
    store->timeout_s = base->timeout_s;
    return store;
}

static tern_store *clone_prefix(const tern_store *store, tern_error *err)
{
    tern_store *root = store->root->ops->clone(store->root, err);
    tern_store *clone = root ? tern__alloc(sizeof(*clone), "tern_store_clone", err) : NULL;
    if (!clone || !(clone->prefix = tern__strdup(store->prefix, "tern_store_clone", err))) {
        tern__free(clone);
        tern_store_close(root);
        return NULL;
    }
    clone->prefix_bytes = store->prefix_bytes;
    clone->root = root;
    clone->owns_root = true;
    return clone;
}

tern_store *tern_store_clone(tern_store *store, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!store) {
        tern__error_set(err, __func__, TERN_E_INVALID, "no store");
        return NULL;
    }
    tern_store *clone = store->ops ? store->ops->clone(store, err) : clone_prefix(store, err);
    if (clone) clone->timeout_s = store->timeout_s;
    return clone;
}

void tern_store_close(tern_store *store)
{
    if (!store) return;
    if (store->ops) store->ops->close(store);
    if (store->owns_root) tern_store_close(store->root);
    tern__buffer_release(&store->query);
    tern__buffer_release(&store->answer);
    tern__buffer_release(&store->values);
    tern__free(store->prefix);
    tern__free(store);
}

int tern_store_port(const tern_store *store)
{
    return store ? store->root->port : 0;
}

int tern_store_timeout_set(tern_store *store, double timeout_s, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!store || !(timeout_s > 0))
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "expected a store and a timeout of more than 0 s, got %g", timeout_s);
    store->timeout_s = timeout_s;
    return TERN_OK;
}

/* ---- queries: begin, put.., ask ---- */

/* One call. Its query is built in the store's buffer. After the first error the other steps do nothing. */
typedef struct call {
    tern_store *store;
    const char *func, *key; /* the first key, for errors */
    size_t keys;
    tern_error *err;
    int status;
} call;

static call query_begin(tern_store *store, const char *func, uint8_t code, tern_error *err)
{
    call c = {.store = store, .func = func, .key = "", .err = err};
    c.status = tern__is_set(err) ? err->code : TERN_OK;
    if (c.status) return c;
    if (!store) {
        c.status = tern__error_set(err, func, TERN_E_INVALID, "no store");
        return c;
    }
    tern__buffer_consume(&store->query, store->query.bytes);
    tern__buffer_consume(&store->answer, store->answer.bytes);
    if (!tern__buffer_append(&store->query, &code, sizeof(code)))
        c.status = tern__error_set(err, func, TERN_E_MEMORY, "out of memory for a query");
    return c;
}

static void query_put(call *c, const void *data, size_t bytes)
{
    if (!c->status && !tern__buffer_append(&c->store->query, data, bytes))
        c->status = tern__error_set(c->err, c->func, TERN_E_MEMORY, "out of memory: a query of %zu bytes",
                                    c->store->query.bytes + bytes);
}

static void put_number(call *c, uint64_t number)
{
    query_put(c, &number, sizeof(number));
}

static void put_key(call *c, const char *key)
{
    if (c->status) return;
    if (!key) {
        c->status = tern__error_set(c->err, c->func, TERN_E_INVALID, "a key is NULL");
        return;
    }
    size_t bytes = strlen(key), prefix_bytes = c->store->prefix_bytes;
    if (prefix_bytes + bytes > TERN_STORE_KEY_MAX) {
        c->status = tern__error_set(c->err, c->func, TERN_E_INVALID,
                                    "the key has %zu bytes with its prefix, at most %d fit",
                                    prefix_bytes + bytes, TERN_STORE_KEY_MAX);
        return;
    }
    if (!c->keys++) c->key = key;
    put_number(c, prefix_bytes + bytes);
    query_put(c, c->store->prefix, prefix_bytes);
    query_put(c, key, bytes);
}

static void put_value(call *c, const void *value, size_t bytes)
{
    if (!c->status && bytes > TERN_STORE_VALUE_MAX)
        c->status = tern__error_set(c->err, c->func, TERN_E_INVALID,
                                    "value of key \"%s\" has %zu bytes, at most %d fit", c->key, bytes,
                                    TERN_STORE_VALUE_MAX);
    if (!c->status && bytes && !value)
        c->status = tern__error_set(c->err, c->func, TERN_E_INVALID, "value of key \"%s\" is NULL", c->key);
    put_number(c, bytes);
    query_put(c, value, bytes);
}

static void put_keys(call *c, const char *const *keys, size_t count)
{
    if (!c->status && ((count && !keys) || count > TERN__QUERY_KEYS_MAX))
        c->status = tern__error_set(c->err, c->func, TERN_E_INVALID, "%zu keys, at most %u fit", count,
                                    TERN__QUERY_KEYS_MAX);
    put_number(c, count);
    for (size_t i = 0; i < count && !c->status; i++) put_key(c, keys[i]);
}

static int ask_within(call *c, double timeout_s)
{
    tern_store *store = c->store, *root = store ? store->root : NULL;
    if (!c->status && store->query.bytes > TERN__QUERY_BYTES_MAX)
        c->status =
            tern__error_set(c->err, c->func, TERN_E_INVALID, "the query has %zu bytes, at most %llu fit",
                            store->query.bytes, TERN__QUERY_BYTES_MAX);
    if (c->status) return c->status;
    tern__bytes query = tern__buffer_bytes(&store->query);
    c->status = root->ops->ask(root, query, tern__deadline(timeout_s), &store->answer, c->func, c->err);
    if (c->status == TERN_E_TIMEOUT)
        tern__error_set(c->err, c->func, TERN_E_TIMEOUT, "nobody set key \"%s\"%s in %s within %.3g s",
                        c->key, c->keys > 1 ? " or another of the keys" : "", root->where, timeout_s);
    return c->status;
}

static int store_ask(call *c)
{
    return ask_within(c, c->store ? c->store->timeout_s : 0);
}

/* ---- answers ---- */

static tern__frame_cursor answer_of(const call *c)
{
    return (tern__frame_cursor){c->store->answer.data};
}

static int64_t store_answer_number(const call *c)
{
    tern__frame_cursor cursor = answer_of(c);
    return c->status ? c->status : (int64_t)tern__take_number(&cursor);
}

/* Returns the string at the end of the answer, and appends the zero that follows every value. */
static const void *last_value(call *c, tern__frame_cursor cursor, size_t *bytes)
{
    tern__bytes value = tern__take_string(&cursor);
    size_t at = (size_t)(value.data - c->store->answer.data);
    if (!tern__buffer_append(&c->store->answer, "", 1)) {
        c->status = tern__error_set(c->err, c->func, TERN_E_MEMORY, "out of memory for a value");
        return NULL;
    }
    if (bytes) *bytes = value.bytes;
    return c->store->answer.data + at;
}

/* ---- values ---- */

int tern_store_set(tern_store *store, const char *key, const void *value, size_t bytes, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_SET, err);
    put_key(&c, key);
    put_value(&c, value, bytes);
    return store_ask(&c);
}

static const void *store_fetch(tern_store *store, const char *func, const char *key, double timeout_s,
                               size_t *bytes, tern_error *err)
{
    call c = query_begin(store, func, TERN__QUERY_FETCH, err);
    put_key(&c, key);
    if (ask_within(&c, timeout_s)) return NULL;
    tern__frame_cursor cursor = answer_of(&c);
    tern__take_byte(&cursor);
    return last_value(&c, cursor, bytes);
}

const void *tern_store_get(tern_store *store, const char *key, size_t *bytes, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    return store_fetch(store, __func__, key, store ? store->timeout_s : 0, bytes, err);
}

int tern__store_read(tern_store *store, const char *key, void *value, size_t cap, size_t *bytes,
                     double timeout_s, tern_error *err)
{
    tern_error why = {0};
    const void *found = store_fetch(store, "tern_group_open", key, timeout_s, bytes, &why);
    if (!found) return tern__error_set(err, why.func, why.code, "%s", why.text);
    memcpy(value, found, TERN__MIN(cap, *bytes));
    return TERN_OK;
}

int tern_store_add(tern_store *store, const char *key, int64_t delta, int64_t *sum, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_ADD, err);
    put_key(&c, key);
    put_number(&c, (uint64_t)delta);
    if (!store_ask(&c)) *sum = store_answer_number(&c);
    return c.status;
}

int tern_store_compare_set(tern_store *store, const char *key, tern_store_value expected,
                           tern_store_value desired, tern_store_value *now, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_COMPARE_SET, err);
    put_key(&c, key);
    put_value(&c, expected.data, expected.bytes);
    put_value(&c, desired.data, desired.bytes);
    if (!store_ask(&c)) now->data = last_value(&c, answer_of(&c), &now->bytes);
    return c.status;
}

int tern_store_append(tern_store *store, const char *key, const void *value, size_t bytes, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_APPEND, err);
    put_key(&c, key);
    put_value(&c, value, bytes);
    return store_ask(&c);
}

int tern_store_delete(tern_store *store, const char *key, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_DELETE, err);
    put_key(&c, key);
    store_ask(&c);
    return (int)store_answer_number(&c);
}

/* ---- several keys ---- */

int tern_store_check(tern_store *store, const char *const *keys, size_t count, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_CHECK, err);
    put_keys(&c, keys, count);
    return store_ask(&c) ? c.status : *store->answer.data == TERN__CHECK_READY;
}

int tern__store_has(tern_store *store, const char *key, tern_error *err)
{
    return tern_store_check(store, &key, 1, err);
}

static int store_wait_for(tern_store *store, const char *func, const char *const *keys, size_t count,
                          double timeout_s, tern_error *err)
{
    call c = query_begin(store, func, TERN__QUERY_WAIT, err);
    put_keys(&c, keys, count);
    return ask_within(&c, timeout_s < 0 && store ? store->timeout_s : timeout_s);
}

int tern_store_wait(tern_store *store, const char *const *keys, size_t count, double timeout_s,
                    tern_error *err)
{
    return store_wait_for(store, __func__, keys, count, timeout_s, err);
}

/* Sets values[] to the `count` strings of the answer, each with a zero after it. Every string is moved over
 * its length field, and the zero goes into the eight bytes that this frees behind it. */
static void split_values(uint8_t *at, size_t count, tern_store_value *values)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;
        memcpy(&bytes, at, sizeof(bytes));
        memmove(at, at + sizeof(bytes), (size_t)bytes);
        at[bytes] = '\0';
        values[i] = (tern_store_value){at, (size_t)bytes};
        at += sizeof(bytes) + (size_t)bytes;
    }
}

int tern_store_multi_get(tern_store *store, const char *const *keys, size_t count, tern_store_value *values,
                         tern_error *err)
{
    int status = store_wait_for(store, __func__, keys, count, -1, err);
    if (status) return status;
    call c = query_begin(store, __func__, TERN__QUERY_MULTI_GET, err);
    put_keys(&c, keys, count);
    if (!store_ask(&c)) split_values(store->answer.data, count, values);
    return c.status;
}

int tern_store_multi_set(tern_store *store, const char *const *keys, const tern_store_value *values,
                         size_t count, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_MULTI_SET, err);
    if (!c.status && ((count && !(keys && values)) || count > TERN__QUERY_KEYS_MAX))
        return tern__error_set(err, __func__, TERN_E_INVALID, "%zu keys, at most %u fit", count,
                               TERN__QUERY_KEYS_MAX);
    put_number(&c, count);
    for (size_t i = 0; i < count && !c.status; i++) {
        put_key(&c, keys[i]);
        put_value(&c, values[i].data, values[i].bytes);
    }
    return store_ask(&c);
}

int64_t tern_store_num_keys(tern_store *store, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_NUM_KEYS, err);
    store_ask(&c);
    return store_answer_number(&c);
}

/* Keeps the keys that begin with the prefix, and strips it. */
static size_t keep_own(const tern_store *store, tern_store_value *keys, size_t all)
{
    size_t kept = 0;
    for (size_t i = 0; i < all; i++) {
        const char *key = keys[i].data;
        if (keys[i].bytes < store->prefix_bytes || memcmp(key, store->prefix, store->prefix_bytes)) continue;
        keys[kept++] = (tern_store_value){key + store->prefix_bytes, keys[i].bytes - store->prefix_bytes};
    }
    return kept;
}

const tern_store_value *tern_store_list_keys(tern_store *store, size_t *count, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    call c = query_begin(store, __func__, TERN__QUERY_LIST_KEYS, err);
    if (store_ask(&c)) return NULL;
    tern__frame_cursor cursor = answer_of(&c);
    size_t all = (size_t)tern__take_number(&cursor);
    store->values.bytes = 0;
    if (!tern__buffer_reserve(&store->values, (all + 1) * sizeof(tern_store_value))) {
        tern__error_set(err, __func__, TERN_E_MEMORY, "out of memory for %zu keys", all);
        return NULL;
    }
    tern_store_value *keys = (tern_store_value *)(void *)store->values.data;
    split_values(store->answer.data + sizeof(uint64_t), all, keys);
    *count = keep_own(store, keys, all);
    return keys;
}

/* ---- queues and barriers ---- */

int tern_store_queue_push(tern_store *store, const char *key, const void *value, size_t bytes,
                          tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_QUEUE_PUSH, err);
    put_key(&c, key);
    put_value(&c, value, bytes);
    return store_ask(&c);
}

/* Returns the oldest value, or NULL: the queue is empty, or *err is set. */
static const void *answer_pop(tern_store *store, const char *func, const char *key, size_t *bytes,
                              tern_error *err)
{
    call c = query_begin(store, func, TERN__QUERY_QUEUE_POP, err);
    put_key(&c, key);
    if (store_ask(&c)) return NULL;
    tern__frame_cursor cursor = answer_of(&c);
    return tern__take_number(&cursor) ? last_value(&c, cursor, bytes) : NULL;
}

static int nobody_pushed(const tern_store *store, const char *func, const char *key, tern_error *err)
{
    return tern__error_set(err, func, TERN_E_TIMEOUT,
                           "nobody pushed a value to queue \"%s\" in %s within %.3g s", key,
                           store->root->where, store->timeout_s);
}

/* Waits until the key exists. */
static int wait_for_push(tern_store *store, const char *func, const char *key, int64_t deadline,
                         tern_error *err)
{
    tern_error why = {0};
    double left = (double)(deadline - tern__now_ns()) * 1e-9;
    int status = store_wait_for(store, func, &key, 1, TERN__MAX(left, 0), &why);
    if (status == TERN_E_TIMEOUT) return nobody_pushed(store, func, key, err);
    return status ? tern__error_set(err, why.func, status, "%s", why.text) : TERN_OK;
}

/* The key exists, but its queue is empty: another client has popped the value, or the key has a plain value.
 */
static void pause_until(const tern_store *store, const char *func, const char *key, int64_t deadline,
                        tern_error *err)
{
    if (tern__now_ns() >= deadline)
        nobody_pushed(store, func, key, err);
    else
        tern__poll(NULL, 0, TERN__MIN(deadline, tern__deadline(look_interval_s)));
}

const void *tern_store_queue_pop(tern_store *store, const char *key, bool block, size_t *bytes,
                                 tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err)) return NULL;
    int64_t deadline = tern__deadline(store ? store->timeout_s : 0);
    const void *value = answer_pop(store, __func__, key, bytes, &why);
    bool waits = block && key; /* without a key the first pop has failed, which a compiler cannot see */
    while (waits && !value && !tern__is_set(&why)) {
        if (wait_for_push(store, __func__, key, deadline, &why)) break;
        value = answer_pop(store, __func__, key, bytes, &why);
        if (!value && !tern__is_set(&why)) pause_until(store, __func__, key, deadline, &why);
    }
    if (tern__is_set(&why)) tern__error_set(err, why.func, why.code, "%s", why.text);
    return value;
}

int64_t tern_store_queue_len(tern_store *store, const char *key, tern_error *err)
{
    call c = query_begin(store, __func__, TERN__QUERY_QUEUE_LEN, err);
    put_key(&c, key);
    store_ask(&c);
    return store_answer_number(&c);
}

/* A barrier as PyTorch's other stores implement it: the last rank sets a key that all wait for. */
static int meet_in_steps(tern_store *store, const char *func, const char *key, int64_t world, tern_error *err)
{
    char come[TERN_STORE_KEY_MAX + 1], last[TERN_STORE_KEY_MAX + 1];
    const char *keys[] = {last};
    int64_t members;
    if ((size_t)snprintf(come, sizeof(come), "%s/num_members", key) >= sizeof(come) ||
        (size_t)snprintf(last, sizeof(last), "%s/last_member", key) >= sizeof(last))
        return tern__error_set(err, func, TERN_E_INVALID, "key of %zu bytes for a barrier", strlen(key));
    int status = tern_store_add(store, come, 1, &members, err);
    if (!status && members == world) status = tern_store_set(store, last, "1", 1, err);
    return status ? status : store_wait_for(store, func, keys, 1, -1, err);
}

/* PyTorch's TCP stores have a query for this. Its other stores, and prefix stores of any kind, take several.
 */
int tern_store_barrier(tern_store *store, const char *key, int64_t world, tern_error *err)
{
    tern_error why = {0};
    if (!store || !key || world < 1)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "a barrier needs a store, a key and a world of at least 1, got %lld",
                               (long long)world);
    if (!store->ops || !store->ops->has_barrier) return meet_in_steps(store, __func__, key, world, err);
    call c = query_begin(store, __func__, TERN__QUERY_BARRIER, &why);
    put_key(&c, key);
    put_number(&c, (uint64_t)world);
    if (store_ask(&c) == TERN_E_UNSUPPORTED) return meet_in_steps(store, __func__, key, world, err);
    return c.status ? tern__error_set(err, __func__, c.status, "%s", why.text) : TERN_OK;
}
