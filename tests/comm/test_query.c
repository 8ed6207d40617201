/* The store without sockets: its table's limits, and its parser under bytes that mean harm. */
#include "check.h"

#include "comm/store/query.h"
#include "comm/store/wire.h"

#include <stdlib.h>
#include <string.h>

static tern__slice slice(const char *text)
{
    return (tern__slice){(const uint8_t *)text, strlen(text)};
}

static void a_table_keeps_to_its_limits(void **state)
{
    (void)state;
    tern_error err = {0};
    tern__table *table = tern__table_new(3, 20, &err);
    assert_ok(err);
    assert_true(tern__table_set(table, slice("a"), slice("12345")));
    assert_true(tern__table_set(table, slice("b"), slice("12345")));
    assert_false(tern__table_set(table, slice("c"), slice("12345678"))); /* 21 bytes */
    assert_null(tern__table_get(table, slice("c")).data);
    assert_true(tern__table_set(table, slice("c"), slice("1234567")));
    assert_false(tern__table_set(table, slice("d"), slice(""))); /* a fourth key */
    assert_false(tern__table_set(table, slice("a"), slice("123456")));
    assert_int_equal(tern__table_get(table, slice("a")).bytes, 5); /* as before */
    assert_true(tern__table_set(table, slice("a"), slice("")));
    assert_non_null(tern__table_get(table, slice("a")).data); /* empty, but there */
    assert_true(tern__table_set(table, slice("b"), slice("1234567890")));
    assert_memory_equal(tern__table_get(table, slice("b")).data, "1234567890", 10);
    tern__table_free(table);
}

static void many_keys_stay_apart(void **state)
{
    (void)state;
    enum { keys = 5000 };
    tern__table *table = tern__table_new(keys, 1 << 20, NULL);
    for (int round = 0; round < 2; round++)
        for (int32_t i = 0; i < keys; i++) {
            int32_t value = i * 7 + round;
            tern__slice key = {(uint8_t *)&i, sizeof(i)};
            assert_true(tern__table_set(table, key, (tern__slice){(uint8_t *)&value, sizeof(value)}));
        }
    for (int32_t i = 0; i < keys; i++) {
        int32_t expected = i * 7 + 1;
        assert_memory_equal(tern__table_get(table, (tern__slice){(uint8_t *)&i, sizeof(i)}).data, &expected,
                            4);
    }
    tern__table_free(table);
}

/* ---- the parser ---- */

/* One query in a block of exactly its size, so that a sanitizer sees a read past its end. */
static tern__query_result run(tern__table *table, const void *bytes, size_t count, size_t *used,
                              tern__buffer *reply)
{
    bool changed;
    uint8_t *exact = malloc(count ? count : 1);
    if (count) memcpy(exact, bytes, count);
    tern__query_result result = tern__query_run(table, (tern__slice){exact, count}, used, reply, &changed);
    free(exact);
    return result;
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

/* A sound query of some kind. */
static size_t make_query(uint8_t *out, uint32_t kind)
{
    static const uint8_t codes[] = {TERN__QUERY_SET,   TERN__QUERY_GET,  TERN__QUERY_ADD,
                                    TERN__QUERY_CHECK, TERN__QUERY_WAIT, TERN__QUERY_CANCEL_WAIT};
    size_t used = 1;
    uint64_t keys = 2, delta = 3;
    out[0] = codes[kind];
    if (out[0] == TERN__QUERY_CHECK || out[0] == TERN__QUERY_WAIT) {
        used += put(out + used, &keys, sizeof(keys));
        used += put_string(out + used, "first");
    }
    if (out[0] != TERN__QUERY_CANCEL_WAIT)
        used += put_string(out + used, out[0] == TERN__QUERY_ADD ? "n" : "second");
    if (out[0] == TERN__QUERY_SET) used += put_string(out + used, "value");
    if (out[0] == TERN__QUERY_ADD) used += put(out + used, &delta, sizeof(delta));
    return used;
}

static void a_query_cut_anywhere_asks_for_more(void **state)
{
    (void)state;
    tern__table *table = tern__table_new(10, 1000, NULL);
    assert_true(tern__table_set(table, slice("first"), slice("1")));
    for (uint32_t kind = 0; kind < 6; kind++) {
        uint8_t query[128];
        tern__buffer reply = {0};
        size_t used, bytes = make_query(query, kind);
        for (size_t cut = 0; cut < bytes; cut++) {
            assert_int_equal(run(table, query, cut, &used, &reply), TERN__QUERY_MORE);
            assert_int_equal(used, 0);
            assert_int_equal(reply.bytes, 0);
        }
        assert_int_equal(run(table, query, bytes, &used, &reply), TERN__QUERY_DONE);
        assert_int_equal(used, bytes);
        tern__buffer_release(&reply);
    }
    tern__table_free(table);
}

static void a_wait_blocks_until_its_keys_are_there_or_it_is_canceled(void **state)
{
    (void)state;
    tern__table *table = tern__table_new(10, 1000, NULL);
    uint8_t query[128];
    tern__buffer reply = {0};
    size_t used, made = make_query(query, 4), bytes = TERN__MIN(made, sizeof(query) - 1);
    assert_true(tern__table_set(table, slice("first"), slice("1")));
    assert_int_equal(run(table, query, bytes, &used, &reply), TERN__QUERY_BLOCKS);
    query[bytes] = TERN__QUERY_SET;
    assert_int_equal(run(table, query, bytes + 1, &used, &reply), TERN__QUERY_BAD);
    query[bytes] = TERN__QUERY_CANCEL_WAIT;
    assert_int_equal(run(table, query, bytes + 1, &used, &reply), TERN__QUERY_DONE);
    assert_int_equal(used, bytes + 1);
    assert_int_equal(reply.bytes, 1);
    assert_int_equal(reply.data[0], TERN__WAIT_CANCELED);
    assert_true(tern__table_set(table, slice("second"), slice("2")));
    assert_int_equal(run(table, query, bytes, &used, &reply), TERN__QUERY_DONE);
    assert_int_equal(reply.data[1], TERN__WAIT_DONE);
    tern__buffer_release(&reply);
    tern__table_free(table);
}

/* Sound queries with bytes changed at random: whatever comes out, no read past the end, no memory beyond the
 * table's limit, and what is used is never more than what came. */
static void mutated_queries_do_no_harm(void **state)
{
    (void)state;
    enum { rounds = 200000, table_bytes = 4096 };
    tern__table *table = tern__table_new(64, table_bytes, NULL);
    int results[4] = {0};
    uint32_t random = 12345;
    for (int i = 0; i < rounds; i++) {
        uint8_t query[128];
        tern__buffer reply = {0};
        size_t used, bytes = make_query(query, (random >> 8) % 6);
        for (int flips = (int)(random >> 24) % 4; flips >= 0; flips--) {
            random = random * 1664525 + 1013904223;
            query[(random >> 16) % bytes] = (uint8_t)(random >> 8) & (random & 1 ? 0xff : 0x0f);
        }
        random = random * 1664525 + 1013904223;
        tern__query_result result = run(table, query, bytes - (random >> 28) % bytes, &used, &reply);
        assert_true(used <= bytes && (result == TERN__QUERY_DONE) == (used > 0));
        assert_true(reply.bytes <= 8 + table_bytes);
        results[result]++;
        tern__buffer_release(&reply);
    }
    for (int i = 0; i < 4; i++) assert_true(results[i] > 100); /* the mutations reach everything */
    tern__table_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_keeps_to_its_limits),
        cmocka_unit_test(many_keys_stay_apart),
        cmocka_unit_test(a_query_cut_anywhere_asks_for_more),
        cmocka_unit_test(a_wait_blocks_until_its_keys_are_there_or_it_is_canceled),
        cmocka_unit_test(mutated_queries_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
