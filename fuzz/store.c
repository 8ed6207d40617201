/* store.c - fuzzes the stores' parsers. Each input is parsed as queries of both of PyTorch's protocols, in
 * two pieces, and run on a table; as an answer; and as records of a file store, which are written and read
 * again. */
#include "fuzz.h"

#include "comm/store/query.h"
#include "comm/store/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { keys_max = 64, bytes_max = 64 << 10 };

static void expect(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

static tern__table *table_new(void)
{
    tern__table *table = tern__table_new(keys_max, bytes_max, "fuzz", NULL);
    expect(table != NULL, "no memory");
    return table;
}

/* Copies the bytes into a block of exactly their size, so that a sanitizer sees reads past the end. */
static uint8_t *exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (size) memcpy(copy, data, size);
    return copy;
}

/* Scans the first `part` bytes and, if the frame is incomplete, all of them. */
static tern__frame_state scan(tern__frame *frame, const uint8_t *data, size_t part, size_t size)
{
    for (size_t end = part;; end = size) {
        uint8_t *bytes = exact(data, end);
        tern__frame_state state = tern__frame_scan(frame, (tern__bytes){bytes, end});
        free(bytes);
        expect(state != TERN__FRAME_DONE || frame->at <= end, "a frame behind the end");
        if (state != TERN__FRAME_MORE || end == size) return state;
    }
}

static void run_one(tern__table *table, const uint8_t *data, size_t bytes, uint8_t code)
{
    uint8_t *query = exact(data, bytes);
    tern__key_waiter waiter = {0};
    tern__buffer reply = {0};
    query[0] = code;
    tern__query_result result = tern__query_run(table, query, &waiter, &reply);
    expect(result != TERN__QUERY_BLOCKS || waiter.at, "blocks nowhere");
    tern__table_leave(table, &waiter);
    while (tern__table_woken(table)) continue;
    expect(reply.bytes <= (size_t)1 << 27, "an answer without end");
    tern__buffer_release(&reply);
    free(query);
}

static void run_queries(tern__dialect dialect, const uint8_t *data, size_t size)
{
    tern__table *table = table_new();
    for (size_t at = 0; at < size;) {
        tern__frame frame;
        if (tern__frame_query(&frame, dialect, data[at]) == TERN__FRAME_BAD) break;
        if (scan(&frame, data + at, (size - at) / 2, size - at) != TERN__FRAME_DONE) break;
        run_one(table, data + at, frame.at, tern__code_from(dialect, data[at]));
        at += frame.at;
    }
    expect(tern__table_count(table) <= keys_max, "more keys than fit");
    tern__table_free(table);
}

static void read_answer(const uint8_t *data, size_t size)
{
    tern__frame frame;
    if (!size || tern__code_from(TERN__DIALECT_TORCH2, data[0]) == TERN__NO_CODE) return;
    tern__frame_answer(&frame, data[0], 3);
    scan(&frame, data + 1, (size - 1) / 2, size - 1);
}

static void apply_all(tern__table *table, const uint8_t *data, size_t size)
{
    size_t used;
    for (size_t at = 0; at < size; at += used) {
        uint8_t *bytes = exact(data + at, size - at);
        tern__record_state state = tern__record_apply(table, (tern__bytes){bytes, size - at}, &used);
        free(bytes);
        if (state != TERN__RECORD_DONE) return;
        expect(used >= 8 && used <= size - at, "a record that is none");
    }
}

static void read_records(const uint8_t *data, size_t size)
{
    tern__table *table = table_new(), *again = table_new();
    tern__buffer out = {0};
    tern__table_cursor cursor = {0};
    tern__bytes key;
    apply_all(table, data, size);
    while (tern__table_next(table, &cursor, &key))
        if (!key.bytes || key.data[0] != '-') expect(tern__record_append(&out, table, key), "no memory");
    apply_all(again, out.data, out.bytes);
    cursor = (tern__table_cursor){0};
    while (tern__table_next(again, &cursor, &key)) {
        tern__bytes a = tern__table_get(table, key), b = tern__table_get(again, key);
        expect(a.data && a.bytes == b.bytes && !memcmp(a.data, b.data, a.bytes), "another value");
    }
    expect(tern__table_count(again) == tern__table_count(table), "another number of keys");
    tern__buffer_release(&out);
    tern__table_free(table);
    tern__table_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    run_queries(TERN__DIALECT_TORCH2, data, size);
    run_queries(TERN__DIALECT_TORCH1, data, size);
    read_answer(data, size);
    read_records(data, size);
    return 0;
}
