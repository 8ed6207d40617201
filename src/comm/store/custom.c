/* custom.c - a store of the user's own functions. A query is decoded, its function called, and what that
 * gives is encoded as an answer. */
#include "comm/store/frame.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include "base/opts.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* The user's functions, which a store's clones share. */
typedef struct custom {
    tern_store_methods methods;
    void *ctx;
    atomic_int users;
} custom;

typedef struct custom_store {
    tern_store base;
    custom *custom;
} custom_store;

/* Where a function's value goes. */
struct tern_store_answer {
    tern__buffer *to;
    bool is_set;
};

/* A query that is being answered. Its keys and values are views of the query's bytes; a key gets its zero
 * byte in `keys`, which are freed with the query. */
typedef struct custom_query {
    const tern_store_methods *methods;
    void *ctx;
    tern__frame_cursor in;
    double timeout_s;
    tern__buffer *answer;
    char **keys;
    size_t key_count;
    const char *func;
    tern_error *err;
} custom_query;

static const tern__store_ops ops;

int tern_store_answer_set(tern_store_answer *answer, const void *value, size_t bytes, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!answer || (bytes && !value) || bytes > TERN_STORE_VALUE_MAX || answer->is_set)
        return tern__error_set(
            err, __func__, TERN_E_INVALID, "expected one value of at most %d bytes, got %s%zu bytes",
            TERN_STORE_VALUE_MAX, answer && answer->is_set ? "a second one of " : "", bytes);
    answer->is_set = tern__buffer_append_string(answer->to, value, bytes);
    return answer->is_set ? TERN_OK
                          : tern__error_set(err, __func__, TERN_E_MEMORY, "out of memory for a value");
}

/* ---- decoding ---- */

static int fail_memory(const custom_query *q)
{
    return tern__error_set(q->err, q->func, TERN_E_MEMORY, "out of memory for a query");
}

/* Copies the next `count` keys of the query. */
static int query_keys(custom_query *q, size_t count)
{
    q->keys = tern__alloc((count + 1) * sizeof(*q->keys), q->func, q->err);
    if (!q->keys) return TERN_E_MEMORY;
    for (; q->key_count < count; q->key_count++) {
        tern__bytes key = tern__take_string(&q->in);
        char *copy = tern__alloc(key.bytes + 1, q->func, q->err);
        if (!copy) return TERN_E_MEMORY;
        memcpy(copy, key.data, key.bytes);
        q->keys[q->key_count] = copy;
    }
    return TERN_OK;
}

static void query_release(custom_query *q)
{
    for (size_t i = 0; i < q->key_count; i++) tern__free(q->keys[i]);
    tern__free(q->keys);
}

/* ---- encoding ---- */

static int answer_byte(const custom_query *q, uint8_t byte)
{
    return tern__buffer_append(q->answer, &byte, sizeof(byte)) ? TERN_OK : fail_memory(q);
}

static int custom_answer_number(const custom_query *q, int64_t number)
{
    if (number < 0) return (int)number; /* the function has failed */
    return tern__buffer_append(q->answer, &number, sizeof(number)) ? TERN_OK : fail_memory(q);
}

static int fail_unanswered(const custom_query *q, const char *function)
{
    return tern__error_set(q->err, q->func, TERN_E_INVALID, "%s returned without a value", function);
}

static int fail_lacking(const custom_query *q, const char *function)
{
    return tern__error_set(q->err, q->func, TERN_E_UNSUPPORTED, "this store has no function %s", function);
}

/* ---- the queries ---- */

static int custom_get(const custom_query *q, const char *key)
{
    tern_store_answer value = {.to = q->answer};
    int status = q->methods->get(q->ctx, key, q->timeout_s, &value, q->err);
    return status || value.is_set ? status : fail_unanswered(q, "get");
}

static int custom_set(custom_query *q, bool is_append)
{
    int status = query_keys(q, 1);
    if (status) return status;
    tern__bytes value = tern__take_string(&q->in);
    if (is_append && !q->methods->append) return fail_lacking(q, "append");
    return (is_append ? q->methods->append : q->methods->set)(q->ctx, q->keys[0], value.data, value.bytes,
                                                              q->err);
}

static int custom_fetch(custom_query *q)
{
    int status = query_keys(q, 1);
    if (!status) status = answer_byte(q, TERN__WAIT_DONE);
    return status ? status : custom_get(q, q->keys[0]);
}

static int custom_add(custom_query *q)
{
    int64_t sum = 0;
    int status = query_keys(q, 1);
    if (!status)
        status = q->methods->add(q->ctx, q->keys[0], (int64_t)tern__take_number(&q->in), &sum, q->err);
    if (!status && !tern__buffer_append(q->answer, &sum, sizeof(sum))) status = fail_memory(q);
    return status;
}

static int custom_compare_set(custom_query *q)
{
    tern_store_answer now = {.to = q->answer};
    int status = query_keys(q, 1);
    if (status) return status;
    tern__bytes expected = tern__take_string(&q->in), desired = tern__take_string(&q->in);
    if (!q->methods->compare_set) return fail_lacking(q, "compare_set");
    status = q->methods->compare_set(q->ctx, q->keys[0], (tern_store_value){expected.data, expected.bytes},
                                     (tern_store_value){desired.data, desired.bytes}, &now, q->err);
    return status || now.is_set ? status : fail_unanswered(q, "compare_set");
}

static int custom_check(custom_query *q)
{
    int status = query_keys(q, tern__take_number(&q->in));
    if (status) return status;
    int all = q->methods->check(q->ctx, (const char *const *)q->keys, q->key_count, q->err);
    return all < 0 ? all : answer_byte(q, all ? TERN__CHECK_READY : TERN__CHECK_NOT_READY);
}

static int custom_wait(custom_query *q)
{
    int status = query_keys(q, tern__take_number(&q->in));
    if (!status)
        status = q->methods->wait(q->ctx, (const char *const *)q->keys, q->key_count, q->timeout_s, q->err);
    return status ? status : answer_byte(q, TERN__WAIT_DONE);
}

static int custom_multi_get(custom_query *q)
{
    int status = query_keys(q, tern__take_number(&q->in));
    for (size_t i = 0; i < q->key_count && !status; i++) status = custom_get(q, q->keys[i]);
    return status;
}

static int custom_multi_set(custom_query *q)
{
    int status = TERN_OK;
    for (uint64_t left = tern__take_number(&q->in); left && !status; left--) {
        query_release(q);
        q->key_count = 0;
        status = custom_set(q, false);
    }
    return status;
}

static int custom_remove(custom_query *q)
{
    int status = query_keys(q, 1);
    return status ? status : custom_answer_number(q, q->methods->remove(q->ctx, q->keys[0], q->err));
}

static int query_dispatch(custom_query *q, uint8_t code)
{
    switch (code) {
    case TERN__QUERY_SET: return custom_set(q, false);
    case TERN__QUERY_APPEND: return custom_set(q, true);
    case TERN__QUERY_FETCH: return custom_fetch(q);
    case TERN__QUERY_ADD: return custom_add(q);
    case TERN__QUERY_COMPARE_SET: return custom_compare_set(q);
    case TERN__QUERY_CHECK: return custom_check(q);
    case TERN__QUERY_WAIT: return custom_wait(q);
    case TERN__QUERY_DELETE: return custom_remove(q);
    case TERN__QUERY_MULTI_GET: return custom_multi_get(q);
    case TERN__QUERY_MULTI_SET: return custom_multi_set(q);
    case TERN__QUERY_NUM_KEYS:
        if (!q->methods->num_keys) return fail_lacking(q, "num_keys");
        return custom_answer_number(q, q->methods->num_keys(q->ctx, q->err));
    default:
        return tern__error_set(q->err, q->func, TERN_E_UNSUPPORTED,
                               "a custom store has no queues and does not list its keys");
    }
}

static double seconds_until(int64_t deadline)
{
    double left = (double)(deadline - tern__now_ns()) * 1e-9, ages = 50.0 * 365 * 86400;
    return left > ages ? INFINITY : TERN__MAX(left, 0);
}

/* A function that fails without a word is still an error. For a time-out the caller has the better text. */
static int custom_ask(tern_store *root, tern__bytes query, int64_t deadline, tern__buffer *answer,
                      const char *func, tern_error *err)
{
    tern_error why = {0};
    const custom *of = ((custom_store *)root)->custom;
    custom_query q = {.methods = &of->methods,
                      .ctx = of->ctx,
                      .in = {query.data + 1},
                      .timeout_s = seconds_until(deadline),
                      .answer = answer,
                      .func = func,
                      .err = &why};
    int status = query_dispatch(&q, query.data[0]);
    query_release(&q);
    if (status >= 0 && !why.code) return TERN_OK;
    status = why.code ? why.code : status;
    if (status == TERN_E_TIMEOUT) return status;
    return tern__error_set(err, func, status, "%s: %s", root->where,
                           *why.text ? why.text : tern_status_text(status));
}

/* ---- life ---- */

static void custom_leave(custom *of)
{
    if (atomic_fetch_sub(&of->users, 1) > 1) return;
    if (of->methods.close) of->methods.close(of->ctx);
    tern__free(of);
}

static tern_store *custom_open(custom *of, const char *where, const char *func, tern_error *err)
{
    custom_store *store = tern__alloc(sizeof(*store), func, err);
    if (!store || tern__store_init(&store->base, &ops, "", func, err)) {
        tern__free(store);
        return NULL;
    }
    atomic_fetch_add(&of->users, 1);
    store->custom = of;
    snprintf(store->base.where, sizeof(store->base.where), "%s", where);
    return &store->base;
}

static tern_store *custom_clone(tern_store *root, tern_error *err)
{
    return custom_open(((custom_store *)root)->custom, root->where, "tern_store_clone", err);
}

static void custom_close(tern_store *root)
{
    custom_leave(((custom_store *)root)->custom);
}

tern_store *tern_store_custom_new(const char *name, const tern_store_methods *methods, void *ctx,
                                  tern_error *err)
{
    tern_store_methods own = {.size = sizeof(own)};
    if (tern__is_set(err)) return NULL;
    if (!name || !methods) {
        tern__error_set(err, __func__, TERN_E_INVALID, "a custom store needs a name and its functions");
        return NULL;
    }
    if (tern__opts_read(&own, sizeof(own), methods, __func__, err)) return NULL;
    if (!own.set || !own.get || !own.add || !own.check || !own.wait || !own.remove) {
        tern__error_set(err, __func__, TERN_E_INVALID,
                        "one of set, get, add, check, wait and remove is NULL in %.200s", name);
        return NULL;
    }
    custom *of = tern__alloc(sizeof(*of), __func__, err);
    if (!of) return NULL;
    of->methods = own;
    of->ctx = ctx;
    tern_store *store = custom_open(of, name, __func__, err);
    if (!store) tern__free(of);
    return store;
}

static const tern__store_ops ops = {.ask = custom_ask, .clone = custom_clone, .close = custom_close};
