#include "comm/store/query.h"

#include "comm/store/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where in the query the parser stands. The first piece that is missing or over its limit decides `result`,
 * and every later take() leaves it alone. */
typedef struct cursor {
    tern__slice in;
    size_t at;
    tern__query_result result;
} cursor;

static bool take(cursor *c, void *out, size_t bytes)
{
    if (c->result == TERN__QUERY_DONE && c->in.bytes - c->at < bytes) c->result = TERN__QUERY_MORE;
    if (c->result != TERN__QUERY_DONE) return false;
    memcpy(out, c->in.data + c->at, bytes);
    c->at += bytes;
    return true;
}

/* A length is checked against its limit before anybody waits for that many bytes. */
static tern__slice take_string(cursor *c, size_t limit)
{
    uint64_t bytes;
    if (!take(c, &bytes, sizeof(bytes))) return (tern__slice){0};
    if (bytes > limit)
        c->result = TERN__QUERY_BAD;
    else if (c->in.bytes - c->at < bytes)
        c->result = TERN__QUERY_MORE;
    if (c->result != TERN__QUERY_DONE) return (tern__slice){0};
    tern__slice string = {c->in.data + c->at, (size_t)bytes};
    c->at += (size_t)bytes;
    return string;
}

static tern__slice take_key(cursor *c)
{
    return take_string(c, TERN__STORE_KEY_MAX);
}

static void answer(cursor *c, tern__buffer *reply, const void *data, size_t bytes)
{
    if (!tern__buffer_append(reply, data, bytes)) c->result = TERN__QUERY_BAD;
}

static bool run_set(cursor *c, tern__table *table)
{
    tern__slice key = take_key(c), value = take_string(c, TERN__STORE_VALUE_MAX);
    if (c->result != TERN__QUERY_DONE) return false;
    if (!tern__table_set(table, key, value)) c->result = TERN__QUERY_BAD;
    return c->result == TERN__QUERY_DONE;
}

static void run_get(cursor *c, const tern__table *table, tern__buffer *reply)
{
    tern__slice key = take_key(c);
    if (c->result != TERN__QUERY_DONE) return;
    tern__slice value = tern__table_get(table, key);
    uint64_t bytes = value.bytes;
    answer(c, reply, &bytes, sizeof(bytes));
    answer(c, reply, value.data, value.bytes);
}

/* The decimal number in `value`; a missing counter is 0. */
static bool parse_counter(tern__slice value, int64_t *out)
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

static bool run_add(cursor *c, tern__table *table, tern__buffer *reply)
{
    int64_t delta, sum;
    tern__slice key = take_key(c);
    if (!take(c, &delta, sizeof(delta))) return false;
    char text[24];
    bool done = parse_counter(tern__table_get(table, key), &sum) && !__builtin_add_overflow(sum, delta, &sum);
    if (done) {
        int bytes = snprintf(text, sizeof(text), "%" PRId64, sum);
        done = tern__table_set(table, key, (tern__slice){(uint8_t *)text, (size_t)bytes});
    }
    if (!done)
        c->result = TERN__QUERY_BAD;
    else
        answer(c, reply, &sum, sizeof(sum));
    return done;
}

/* CHECK and WAIT: do all keys exist? */
static bool have_all(cursor *c, const tern__table *table)
{
    uint64_t count;
    bool all = true;
    if (!take(c, &count, sizeof(count))) return false;
    if (count > TERN__QUERY_KEYS_MAX) c->result = TERN__QUERY_BAD;
    for (uint64_t i = 0; i < count && c->result == TERN__QUERY_DONE; i++) {
        tern__slice key = take_key(c);
        if (c->result == TERN__QUERY_DONE && !tern__table_get(table, key).data) all = false;
    }
    return all;
}

static void run_check(cursor *c, const tern__table *table, tern__buffer *reply)
{
    uint8_t ready = have_all(c, table) ? TERN__CHECK_READY : TERN__CHECK_NOT_READY;
    if (c->result == TERN__QUERY_DONE) answer(c, reply, &ready, sizeof(ready));
}

/* A wait that must wait stays at the front of the client's bytes, so it needs no state of its own. All that
 * may follow it there is its cancel. */
static void run_wait(cursor *c, const tern__table *table, tern__buffer *reply)
{
    uint8_t done = TERN__WAIT_DONE, next;
    bool all = have_all(c, table);
    if (c->result != TERN__QUERY_DONE) return;
    if (!all) {
        done = TERN__WAIT_CANCELED;
        if (!take(c, &next, sizeof(next)))
            c->result = TERN__QUERY_BLOCKS;
        else if (next != TERN__QUERY_CANCEL_WAIT)
            c->result = TERN__QUERY_BAD;
    }
    if (c->result == TERN__QUERY_DONE) answer(c, reply, &done, sizeof(done));
}

tern__query_result tern__query_run(tern__table *table, tern__slice in, size_t *used, tern__buffer *reply,
                                   bool *changed)
{
    cursor c = {.in = in};
    uint8_t code = 0, canceled = TERN__WAIT_CANCELED;
    *changed = false;
    *used = 0;
    if (!take(&c, &code, sizeof(code))) return c.result;
    switch (code) {
    case TERN__QUERY_SET: *changed = run_set(&c, table); break;
    case TERN__QUERY_GET: run_get(&c, table, reply); break;
    case TERN__QUERY_ADD: *changed = run_add(&c, table, reply); break;
    case TERN__QUERY_CHECK: run_check(&c, table, reply); break;
    case TERN__QUERY_WAIT: run_wait(&c, table, reply); break;
    case TERN__QUERY_CANCEL_WAIT: answer(&c, reply, &canceled, sizeof(canceled)); break;
    default: c.result = TERN__QUERY_BAD;
    }
    if (c.result == TERN__QUERY_DONE) *used = c.at;
    return c.result;
}
