/* query.c - runs queries on a table: values, queues, waiting. */
#include "comm/store/query.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    tern__table *table;
    tern__frame_cursor in;
    tern__key_waiter *waiter;
    tern__buffer *reply;
} run;

/* ---- answers ---- */

static tern__query_result done_if(bool fine)
{
    return fine ? TERN__QUERY_DONE : TERN__QUERY_BAD;
}

static tern__query_result answer_byte(run *r, uint8_t byte)
{
    return done_if(tern__buffer_append(r->reply, &byte, sizeof(byte)));
}

static tern__query_result query_answer_number(run *r, int64_t number)
{
    return done_if(tern__buffer_append(r->reply, &number, sizeof(number)));
}

static tern__query_result answer_string(run *r, tern__bytes string)
{
    size_t room = TERN__QUERY_BYTES_MAX - TERN__MIN(r->reply->bytes, TERN__QUERY_BYTES_MAX);
    return done_if(string.bytes + sizeof(uint64_t) <= room &&
                   tern__buffer_append_string(r->reply, string.data, string.bytes));
}

/* ---- values ---- */

static tern__query_result run_set(run *r)
{
    tern__bytes key = tern__take_string(&r->in);
    return done_if(tern__table_set(r->table, key, tern__take_string(&r->in)));
}

static tern__query_result run_append(run *r)
{
    tern__bytes key = tern__take_string(&r->in), value = tern__take_string(&r->in);
    if (tern__table_get(r->table, key).bytes + value.bytes > TERN_STORE_VALUE_MAX) return TERN__QUERY_BAD;
    return done_if(tern__table_append(r->table, key, value));
}

static tern__query_result run_get(run *r)
{
    return answer_string(r, tern__table_get(r->table, tern__take_string(&r->in)));
}

static tern__query_result run_compare_set(run *r)
{
    tern__bytes key = tern__take_string(&r->in), expected = tern__take_string(&r->in),
                desired = tern__take_string(&r->in), now = tern__table_get(r->table, key);
    bool equal = now.bytes == expected.bytes &&
                 !memcmp(now.data ? now.data : expected.data, expected.data, expected.bytes);
    if (!now.data && expected.bytes) return answer_string(r, expected);
    if (!equal) return answer_string(r, now);
    if (!tern__table_set(r->table, key, desired)) return TERN__QUERY_BAD;
    return answer_string(r, desired);
}

/* Parses the decimal number in `value`. A missing counter is 0. */
static bool parse_counter(tern__bytes value, int64_t *out)
{
    char text[24] = "0", *end;
    if (value.bytes >= sizeof(text)) return false;
    if (value.data) {
        memcpy(text, value.data, value.bytes);
        text[value.bytes] = '\0';
    }
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && end != text && !*end;
}

static bool query_count(run *r, tern__bytes key, int64_t delta, int64_t *sum)
{
    char text[24];
    if (!parse_counter(tern__table_get(r->table, key), sum) || __builtin_add_overflow(*sum, delta, sum))
        return false;
    int bytes = snprintf(text, sizeof(text), "%" PRId64, *sum);
    return tern__table_set(r->table, key, (tern__bytes){(uint8_t *)text, (size_t)bytes});
}

static tern__query_result run_add(run *r)
{
    int64_t sum;
    tern__bytes key = tern__take_string(&r->in);
    bool fine = query_count(r, key, (int64_t)tern__take_number(&r->in), &sum);
    return fine ? query_answer_number(r, sum) : TERN__QUERY_BAD;
}

static tern__query_result run_multi_get(run *r)
{
    tern__query_result result = TERN__QUERY_DONE;
    for (uint64_t left = tern__take_number(&r->in); left && result == TERN__QUERY_DONE; left--)
        result = run_get(r);
    return result;
}

static tern__query_result run_multi_set(run *r)
{
    tern__query_result result = TERN__QUERY_DONE;
    for (uint64_t left = tern__take_number(&r->in); left && result == TERN__QUERY_DONE; left--)
        result = run_set(r);
    return result;
}

static tern__query_result run_list_keys(run *r)
{
    tern__table_cursor cursor = {0};
    tern__bytes key;
    tern__query_result result = query_answer_number(r, (int64_t)tern__table_count(r->table));
    while (result == TERN__QUERY_DONE && tern__table_next(r->table, &cursor, &key))
        result = answer_string(r, key);
    return result;
}

/* ---- queues ---- */

static tern__query_result run_queue_push(run *r)
{
    tern__bytes key = tern__take_string(&r->in);
    return done_if(tern__table_push(r->table, key, tern__take_string(&r->in)));
}

static tern__query_result run_queue_pop(run *r)
{
    tern__bytes key = tern__take_string(&r->in), front = tern__table_front(r->table, key);
    tern__query_result result = query_answer_number(r, (int64_t)tern__table_queued(r->table, key));
    if (result == TERN__QUERY_DONE && front.data) result = answer_string(r, front);
    if (result == TERN__QUERY_DONE) tern__table_pop(r->table, key);
    return result;
}

/* ---- waiting ---- */

/* Finds the first key of a CHECK or WAIT that does not exist. Returns false if all do. */
static bool find_missing(run *r, tern__bytes *missing)
{
    for (uint64_t left = tern__take_number(&r->in); left; left--) {
        *missing = tern__take_string(&r->in);
        if (!tern__table_has(r->table, *missing)) return true;
    }
    return false;
}

static tern__query_result block_at(run *r, tern__bytes key)
{
    return tern__table_wait(r->table, key, r->waiter) ? TERN__QUERY_BLOCKS : TERN__QUERY_BAD;
}

static tern__query_result run_check(run *r)
{
    tern__bytes missing;
    return answer_byte(r, find_missing(r, &missing) ? TERN__CHECK_NOT_READY : TERN__CHECK_READY);
}

static tern__query_result run_wait(run *r)
{
    tern__bytes missing;
    return find_missing(r, &missing) ? block_at(r, missing) : answer_byte(r, TERN__WAIT_DONE);
}

static tern__query_result run_fetch(run *r)
{
    tern__bytes key = tern__take_string(&r->in), value = tern__table_get(r->table, key);
    if (!value.data) return block_at(r, key);
    tern__query_result result = answer_byte(r, TERN__WAIT_DONE);
    return result == TERN__QUERY_DONE ? answer_string(r, value) : result;
}

/* Counts the caller once, however often the query is run. */
static tern__query_result run_barrier(run *r)
{
    int64_t sum;
    tern__bytes key = tern__take_string(&r->in);
    int64_t world = (int64_t)tern__take_number(&r->in);
    if (!r->waiter->is_counted) {
        if (!query_count(r, key, 1, &sum)) return TERN__QUERY_BAD;
        r->waiter->is_counted = true;
        if (sum >= world) tern__table_wake(r->table, key);
    } else if (!parse_counter(tern__table_get(r->table, key), &sum)) {
        return TERN__QUERY_BAD;
    }
    if (sum < world) return block_at(r, key);
    r->waiter->is_counted = false;
    return answer_byte(r, TERN__WAIT_DONE);
}

tern__query_result tern__query_cancel(tern__table *table, tern__key_waiter *waiter, tern__buffer *reply)
{
    run r = {.reply = reply};
    tern__table_leave(table, waiter);
    return answer_byte(&r, TERN__WAIT_CANCELED);
}

bool tern__query_writes(uint8_t code)
{
    switch (code) {
    case TERN__QUERY_SET:
    case TERN__QUERY_COMPARE_SET:
    case TERN__QUERY_ADD:
    case TERN__QUERY_DELETE:
    case TERN__QUERY_APPEND:
    case TERN__QUERY_MULTI_SET:
    case TERN__QUERY_BARRIER: return true;
    default: return false;
    }
}

/* Returns a PING's number. A tern client's number is answered with the one that says the server is tern's. */
static tern__query_result run_ping(run *r)
{
    uint32_t number;
    memcpy(&number, r->in.at, sizeof(number));
    if (number == TERN__PING_ASKS) number = TERN__PING_IS_TERN;
    return done_if(tern__buffer_append(r->reply, &number, sizeof(number)));
}

static tern__query_result query_dispatch(run *r, uint8_t code)
{
    switch (code) {
    case TERN__QUERY_SET: return run_set(r);
    case TERN__QUERY_COMPARE_SET: return run_compare_set(r);
    case TERN__QUERY_GET: return run_get(r);
    case TERN__QUERY_ADD: return run_add(r);
    case TERN__QUERY_CHECK: return run_check(r);
    case TERN__QUERY_WAIT: return run_wait(r);
    case TERN__QUERY_NUM_KEYS: return query_answer_number(r, (int64_t)tern__table_count(r->table));
    case TERN__QUERY_DELETE:
        return query_answer_number(r, tern__table_delete(r->table, tern__take_string(&r->in)));
    case TERN__QUERY_APPEND: return run_append(r);
    case TERN__QUERY_MULTI_GET: return run_multi_get(r);
    case TERN__QUERY_MULTI_SET: return run_multi_set(r);
    case TERN__QUERY_CANCEL_WAIT: return answer_byte(r, TERN__WAIT_CANCELED);
    case TERN__QUERY_PING: return run_ping(r);
    case TERN__QUERY_QUEUE_PUSH: return run_queue_push(r);
    case TERN__QUERY_QUEUE_POP: return run_queue_pop(r);
    case TERN__QUERY_QUEUE_LEN:
        return query_answer_number(r, (int64_t)tern__table_queued(r->table, tern__take_string(&r->in)));
    case TERN__QUERY_LIST_KEYS: return run_list_keys(r);
    case TERN__QUERY_BARRIER: return run_barrier(r);
    case TERN__QUERY_FETCH: return run_fetch(r);
    default: return TERN__QUERY_BAD;
    }
}

tern__query_result tern__query_run(tern__table *table, const uint8_t *query, tern__key_waiter *waiter,
                                   tern__buffer *reply)
{
    run r = {table, {query + 1}, waiter, reply};
    return query_dispatch(&r, *query);
}
