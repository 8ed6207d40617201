/* test_query.c - the store without sockets: the limits and waiters of its table, and its parser with
 * malicious input. */
#include "check.h"

#include "comm/store/query.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tern__bytes bytes_of(const char *text)
{
    return (tern__bytes){(const uint8_t *)text, strlen(text)};
}

static tern__table *make_table(size_t keys, size_t bytes)
{
    tern_error err = {0};
    tern__table *table = tern__table_new(keys, bytes, "test", &err);
    assert_ok(err);
    return table;
}

/* ---- the table ---- */

static void a_table_keeps_to_its_limits(void **state)
{
    (void)state;
    tern__table *table = make_table(3, 20);
    assert_true(tern__table_set(table, bytes_of("a"), bytes_of("12345")));
    assert_true(tern__table_set(table, bytes_of("b"), bytes_of("12345")));
    assert_false(tern__table_set(table, bytes_of("c"), bytes_of("12345678"))); /* 21 bytes */
    assert_null(tern__table_get(table, bytes_of("c")).data);
    assert_true(tern__table_set(table, bytes_of("c"), bytes_of("1234567")));
    assert_false(tern__table_set(table, bytes_of("d"), bytes_of(""))); /* a fourth key */
    assert_false(tern__table_set(table, bytes_of("a"), bytes_of("123456")));
    assert_false(tern__table_append(table, bytes_of("a"), bytes_of("6")));
    assert_int_equal(tern__table_get(table, bytes_of("a")).bytes, 5); /* unchanged */
    assert_true(tern__table_set(table, bytes_of("a"), bytes_of("")));
    assert_non_null(tern__table_get(table, bytes_of("a")).data); /* empty, but there */
    assert_true(tern__table_set(table, bytes_of("b"), bytes_of("1234567890")));
    assert_memory_equal(tern__table_get(table, bytes_of("b")).data, "1234567890", 10);
    assert_true(tern__table_delete(table, bytes_of("b")));
    assert_false(tern__table_delete(table, bytes_of("b")));
    assert_int_equal(tern__table_count(table), 2);
    assert_true(
        tern__table_set(table, bytes_of("d"), bytes_of("1234567890"))); /* its former value is freed */
    assert_false(tern__table_push(table, bytes_of("q"), bytes_of(""))); /* an item costs 64 bytes */
    tern__table_free(table);
}

static void many_keys_stay_apart(void **state)
{
    (void)state;
    enum { keys = 5000 };
    tern__table *table = make_table(keys, 1 << 20);
    for (int round = 0; round < 2; round++)
        for (int32_t i = 0; i < keys; i++) {
            int32_t value = i * 7 + round;
            tern__bytes key = {(uint8_t *)&i, sizeof(i)};
            assert_true(tern__table_set(table, key, (tern__bytes){(uint8_t *)&value, sizeof(value)}));
        }
    uint8_t seen[keys] = {0};
    tern__table_cursor cursor = {0};
    tern__bytes key;
    for (int32_t i; tern__table_next(table, &cursor, &key); seen[i]++) memcpy(&i, key.data, sizeof(i));
    for (int32_t i = 0; i < keys; i++) {
        int32_t expected = i * 7 + 1;
        assert_int_equal(seen[i], 1);
        assert_memory_equal(tern__table_get(table, (tern__bytes){(uint8_t *)&i, sizeof(i)}).data, &expected,
                            4);
    }
    tern__table_free(table);
}

static void queues_are_first_in_first_out(void **state)
{
    (void)state;
    tern__table *table = make_table(2, 1000);
    tern__bytes q = bytes_of("q");
    assert_true(tern__table_push(table, q, bytes_of("1")));
    assert_true(tern__table_push(table, q, bytes_of("")));
    assert_true(tern__table_push(table, q, bytes_of("3")));
    assert_true(tern__table_set(table, q, bytes_of("a value beside it")));
    assert_int_equal(tern__table_queued(table, q), 3);
    assert_int_equal(tern__table_count(table), 1);
    assert_memory_equal(tern__table_front(table, q).data, "1", 1);
    tern__table_pop(table, q);
    assert_non_null(tern__table_front(table, q).data);
    assert_int_equal(tern__table_front(table, q).bytes, 0);
    tern__table_pop(table, q);
    assert_true(tern__table_delete(table, q));
    assert_true(tern__table_has(table, q));
    tern__table_pop(table, q);
    assert_false(tern__table_has(table, q));
    tern__table_pop(table, q);
    tern__table_free(table);
}

static void what_waits_is_woken_by_its_key_alone(void **state)
{
    (void)state;
    tern__table *table = make_table(10, 1000);
    tern__key_waiter a = {0}, b = {0}, other = {0}, gone = {0};
    assert_true(tern__table_wait(table, bytes_of("k"), &a));
    assert_true(tern__table_wait(table, bytes_of("k"), &gone));
    assert_true(tern__table_wait(table, bytes_of("k"), &b));
    assert_true(tern__table_wait(table, bytes_of("l"), &other));
    tern__table_leave(table, &gone);
    assert_true(tern__table_set(table, bytes_of("k"), bytes_of("")));
    assert_ptr_equal(tern__table_woken(table), &a);
    assert_ptr_equal(tern__table_woken(table), &b);
    assert_null(tern__table_woken(table));
    assert_int_equal(tern__table_count(table), 1); /* a waiter creates no key */

    tern__table_leave(table, &other);
    tern__key_waiter first = {0}, second = {0};
    assert_true(tern__table_wait(table, bytes_of("q"), &first));
    assert_true(tern__table_wait(table, bytes_of("q"), &second));
    assert_true(tern__table_push(table, bytes_of("q"), bytes_of("1"))); /* a later client may not take it */
    assert_ptr_equal(tern__table_woken(table), &first);
    tern__table_leave(table, &second); /* woken, but gone before it is answered */
    assert_null(tern__table_woken(table));
    tern__table_free(table);
}

/* ---- the parser ---- */

/* Scans a query in a block of exactly its size, so that a sanitizer sees a read past the end. The query
 * arrives in two pieces. */
static tern__frame_state scan(const uint8_t *query, size_t count, size_t cut, tern__dialect dialect,
                              tern__frame *frame)
{
    tern__frame_state state = TERN__FRAME_MORE;
    *frame = (tern__frame){0};
    for (size_t end = cut;; end = count) {
        uint8_t *exact = malloc(end ? end : 1);
        memcpy(exact, query, end);
        if (end && !frame->field) state = tern__frame_query(frame, dialect, exact[0]);
        if (end && state == TERN__FRAME_MORE) state = tern__frame_scan(frame, (tern__bytes){exact, end});
        free(exact);
        if (state != TERN__FRAME_MORE || end == count) return state;
    }
}

static size_t put(uint8_t *at, const void *bytes, size_t count)
{
    memcpy(at, bytes, count);
    return count;
}

static size_t put_string(uint8_t *at, const char *text)
{
    uint64_t length = strlen(text);
    memcpy(at, &length, sizeof(length));
    memcpy(at + sizeof(length), text, length);
    return sizeof(length) + length;
}

static const struct {
    uint8_t code;
    const char *shape;
} queries[] = {
#define X(name, code, code1, query, answer) {code, query},
    TERN__QUERY_LIST(X)
#undef X
};

/* Makes a valid query of some kind, with two keys if it may have several. */
static size_t make_query(uint8_t *out, size_t kind)
{
    size_t used = 1;
    uint64_t two = 2, number = 3;
    const char *again = NULL, *names[] = {"first", "second"};
    int keys = 0;
    out[0] = queries[kind].code;
    for (const char *field = queries[kind].shape; *field || again;) {
        if (!*field) {
            field = again;
            again = NULL;
            continue;
        }
        switch (*field++) {
        case 'k':
            used += put_string(out + used, queries[kind].code == TERN__QUERY_ADD ? "n" : names[keys++]);
            break;
        case 'v': used += put_string(out + used, "value"); break;
        case '4': used += put(out + used, &number, 4); break;
        case '8': used += put(out + used, &number, 8); break;
        default: used += put(out + used, &two, 8), again = field;
        }
    }
    return used;
}

static void a_query_cut_anywhere_asks_for_more(void **state)
{
    (void)state;
    for (size_t kind = 0; kind < TERN__COUNT(queries); kind++) {
        uint8_t query[128];
        tern__frame frame;
        size_t bytes = make_query(query, kind);
        for (size_t cut = 0; cut < bytes; cut++) {
            assert_int_equal(scan(query, cut, cut, TERN__DIALECT_TORCH2, &frame), TERN__FRAME_MORE);
            assert_int_equal(scan(query, bytes, cut, TERN__DIALECT_TORCH2, &frame), TERN__FRAME_DONE);
            assert_int_equal(frame.at, bytes);
        }
        query[bytes] = 'x'; /* a byte of the next query */
        assert_int_equal(scan(query, bytes + 1, bytes + 1, TERN__DIALECT_TORCH2, &frame), TERN__FRAME_DONE);
        assert_int_equal(frame.at, bytes);
    }
}

/* Each byte of a query of many keys is scanned once, however the bytes arrive. */
static void a_frame_remembers_how_far_it_was_looked_at(void **state)
{
    (void)state;
    enum { keys = 20000 };
    uint8_t *query = calloc(9 + keys * 8, 1);
    uint64_t count = keys;
    query[0] = TERN__QUERY_CHECK;
    memcpy(query + 1, &count, sizeof(count));
    tern__frame frame;
    assert_int_equal(tern__frame_query(&frame, TERN__DIALECT_TORCH2, query[0]), TERN__FRAME_MORE);
    for (size_t end = 1; end < 9 + keys * 8; end++) {
        assert_int_equal(tern__frame_scan(&frame, (tern__bytes){query, end}), TERN__FRAME_MORE);
        assert_true(frame.at <= end && frame.at + 8 >= end); /* all complete keys have been scanned */
    }
    assert_int_equal(tern__frame_scan(&frame, (tern__bytes){query, 9 + keys * 8}), TERN__FRAME_DONE);
    free(query);
}

static void the_dialects_have_their_codes(void **state)
{
    (void)state;
    static const uint8_t torch1[] = {TERN__QUERY_SET,      TERN__QUERY_COMPARE_SET, TERN__QUERY_GET,
                                     TERN__QUERY_ADD,      TERN__QUERY_CHECK,       TERN__QUERY_WAIT,
                                     TERN__QUERY_NUM_KEYS, TERN__NO_CODE,           TERN__QUERY_DELETE};
    for (int code = 0; code < 256; code++) {
        uint8_t known = tern__code_from(TERN__DIALECT_TORCH1, (uint8_t)code);
        assert_int_equal(known, code < 9 ? torch1[code] : TERN__NO_CODE);
        if (known != TERN__NO_CODE) assert_int_equal(tern__code_to(TERN__DIALECT_TORCH1, known), code);
    }
    assert_int_equal(tern__code_from(TERN__DIALECT_TORCH2, 0), TERN__NO_CODE);
    assert_int_equal(tern__code_from(TERN__DIALECT_TORCH2, 18), TERN__QUERY_BARRIER);
    assert_int_equal(tern__code_from(TERN__DIALECT_TORCH2, 19), TERN__NO_CODE);
    assert_int_equal(tern__code_to(TERN__DIALECT_TORCH1, TERN__QUERY_APPEND), TERN__NO_CODE);
}

/* ---- queries on a table ---- */

static tern__query_result run(tern__table *table, size_t kind, tern__key_waiter *waiter, tern__buffer *reply)
{
    uint8_t query[128];
    make_query(query, kind);
    return tern__query_run(table, query, waiter, reply);
}

static size_t kind_of(uint8_t code)
{
    size_t kind = 0;
    while (queries[kind].code != code) kind++;
    return kind;
}

static void a_wait_blocks_until_its_keys_are_there_or_it_is_canceled(void **state)
{
    (void)state;
    tern__table *table = make_table(10, 1000);
    tern__key_waiter waiter = {0};
    tern__buffer reply = {0};
    size_t wait = kind_of(TERN__QUERY_WAIT);
    assert_int_equal(run(table, wait, &waiter, &reply), TERN__QUERY_BLOCKS);
    assert_true(tern__table_set(table, bytes_of("first"), bytes_of("1")));
    assert_ptr_equal(tern__table_woken(table), &waiter);
    assert_int_equal(run(table, wait, &waiter, &reply), TERN__QUERY_BLOCKS); /* for the second key */
    assert_int_equal(tern__query_cancel(table, &waiter, &reply), TERN__QUERY_DONE);
    assert_true(tern__table_set(table, bytes_of("second"), bytes_of("2")));
    assert_null(tern__table_woken(table));
    assert_int_equal(run(table, wait, &waiter, &reply), TERN__QUERY_DONE);
    assert_int_equal(reply.bytes, 2);
    assert_int_equal(reply.data[0], TERN__WAIT_CANCELED);
    assert_int_equal(reply.data[1], TERN__WAIT_DONE);
    tern__buffer_release(&reply);
    tern__table_free(table);
}

static void a_barrier_counts_each_caller_once(void **state)
{
    (void)state;
    tern__table *table = make_table(10, 1000);
    tern__key_waiter waiters[3] = {0};
    tern__buffer reply = {0};
    size_t barrier = kind_of(TERN__QUERY_BARRIER); /* for three clients */
    assert_int_equal(run(table, barrier, &waiters[0], &reply), TERN__QUERY_BLOCKS);
    tern__table_wake(table, bytes_of("first"));
    assert_ptr_equal(tern__table_woken(table), &waiters[0]);
    assert_int_equal(run(table, barrier, &waiters[0], &reply),
                     TERN__QUERY_BLOCKS); /* asked again: still counts once */
    assert_int_equal(run(table, barrier, &waiters[1], &reply), TERN__QUERY_BLOCKS);
    assert_int_equal(run(table, barrier, &waiters[2], &reply), TERN__QUERY_DONE);
    assert_ptr_equal(tern__table_woken(table), &waiters[0]);
    assert_ptr_equal(tern__table_woken(table), &waiters[1]);
    for (int i = 0; i < 2; i++) assert_int_equal(run(table, barrier, &waiters[i], &reply), TERN__QUERY_DONE);
    assert_int_equal(run(table, barrier, &waiters[0], &reply), TERN__QUERY_DONE); /* later ones pass */
    tern__buffer_release(&reply);
    tern__table_free(table);
}

/* Answers must end where their formats say, or clients would lose their place in the stream. */
static void answers_have_their_shapes(void **state)
{
    (void)state;
    tern__table *table = make_table(10, 10000);
    for (size_t kind = 0; kind < TERN__COUNT(queries); kind++) {
        tern__buffer reply = {0};
        tern__key_waiter waiter = {0};
        tern__frame frame;
        tern__table_set(table, bytes_of("first"), bytes_of("3"));
        tern__table_set(table, bytes_of("second"), bytes_of("2"));
        assert_int_equal(run(table, kind, &waiter, &reply), TERN__QUERY_DONE);
        tern__frame_answer(&frame, queries[kind].code, 2);
        assert_int_equal(tern__frame_scan(&frame, tern__buffer_bytes(&reply)), TERN__FRAME_DONE);
        assert_int_equal(frame.at, reply.bytes);
        tern__buffer_release(&reply);
    }
    tern__table_free(table);
}

/* Valid queries with bytes changed at random. Whatever the result, nothing is read past the end, memory
 * stays within the table's limit, and queries that run were scanned to their end. */
static void mutated_queries_do_no_harm(void **state)
{
    (void)state;
    enum { rounds = 200000, table_bytes = 4096 };
    tern__table *table = make_table(64, table_bytes);
    int states[3] = {0}, results[3] = {0};
    uint32_t random = 12345;
    for (int i = 0; i < rounds; i++) {
        uint8_t query[128];
        tern__frame frame;
        tern__dialect dialect = random >> 31 ? TERN__DIALECT_TORCH1 : TERN__DIALECT_TORCH2;
        size_t bytes = make_query(query, (random >> 8) % TERN__COUNT(queries));
        for (int flips = (int)(random >> 24) % 4; flips >= 0; flips--) {
            random = random * 1664525 + 1013904223;
            query[(random >> 16) % bytes] = (uint8_t)(random >> 8) & (random & 1 ? 0xff : 0x0f);
        }
        random = random * 1664525 + 1013904223;
        bytes -= (random >> 28) % bytes;
        tern__frame_state scanned = scan(query, bytes, (random >> 20) % (bytes + 1), dialect, &frame);
        states[scanned]++;
        if (scanned != TERN__FRAME_DONE) continue;
        assert_true(frame.at <= bytes);
        uint8_t *exact = malloc(frame.at);
        memcpy(exact, query, frame.at);
        exact[0] = tern__code_from(dialect, exact[0]);
        tern__buffer reply = {0};
        tern__key_waiter waiter = {0};
        results[tern__query_run(table, exact, &waiter, &reply)]++;
        tern__table_leave(table, &waiter);
        assert_true(reply.bytes <= 16 + 3 * table_bytes);
        tern__buffer_release(&reply);
        free(exact);
    }
    for (int i = 0; i < 3; i++) assert_true(states[i] > 100 && results[i] > 100); /* all cases are reached */
    tern__table_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_keeps_to_its_limits),
        cmocka_unit_test(many_keys_stay_apart),
        cmocka_unit_test(queues_are_first_in_first_out),
        cmocka_unit_test(what_waits_is_woken_by_its_key_alone),
        cmocka_unit_test(a_query_cut_anywhere_asks_for_more),
        cmocka_unit_test(a_frame_remembers_how_far_it_was_looked_at),
        cmocka_unit_test(the_dialects_have_their_codes),
        cmocka_unit_test(a_wait_blocks_until_its_keys_are_there_or_it_is_canceled),
        cmocka_unit_test(a_barrier_counts_each_caller_once),
        cmocka_unit_test(answers_have_their_shapes),
        cmocka_unit_test(mutated_queries_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
