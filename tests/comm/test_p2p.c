/* test_p2p.c - messages between ranks: order and source, other works in between, batches, byte strings. */
#include "message.h"

#include <tern.h>

/* ---- blocking calls: order and source ---- */

/* A message goes around the ring, in each size at which the implementation changes. */
static int ring_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const size_t sizes[] = {
        0, 1, 31, 32, 33, 16383, 16384, 16385, 65536, (512 << 10) + 1, (3 << 20) + 5};
    fixture f;
    (void)arg;
    if (fixture_open(&f, rank, boot, 4 << 20)) return 1;
    int next = (rank + 1) % f.world, last = (rank + f.world - 1) % f.world;
    for (size_t i = 0; i < TERN__COUNT(sizes); i++) {
        int source = -7;
        if (rank == 0) message_put(f.plain + 3, sizes[i], i);
        if (rank == 0) tern_send(f.group, f.plain + 3, sizes[i], TERN_U8, next, (int)i, &f.err);
        tern_recv(f.group, f.plain + 5, sizes[i], TERN_U8, last, (int)i, &source, &f.err);
        if (rank != 0) tern_send(f.group, f.plain + 5, sizes[i], TERN_U8, next, (int)i, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, source == last && message_is(f.plain + 5, sizes[i], i));
    }
    return fixture_close(&f);
}

static void test_ring(void **state)
{
    (void)state;
    for (size_t i = 1; i < TERN__COUNT(worlds); i++)
        if (has_world(worlds[i])) assert_ranks_ok(ranks_run(worlds[i], ring_body, NULL));
}

/* Messages with one tag are received in the order sent, long and short ones alternating, in whatever order
 * tags are received; every dtype. */
static int order_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { messages = 24, most = 20000 };
    (void)arg;
    fixture f;
    tern_work *works[messages];
    if (fixture_open(&f, rank, boot, (size_t)messages * most * 8)) return 1;
    for (int i = 0; i < messages; i++) {
        tern_dtype dtype = (tern_dtype)(i / 3 % TERN_DTYPE_COUNT);
        size_t count = i % 2 ? most : (size_t)i, bytes = count * tern_dtype_bytes(dtype);
        char *at = f.plain + (size_t)i * most * 8;
        if (rank == 1) continue;
        message_put(at, bytes, (uint64_t)i);
        works[i] = tern_isend(f.group, at, count, dtype, 1, i % 3, &f.err);
    }
    for (int k = 0; k < messages && rank == 1; k++) {
        int i = k % (messages / 3) * 3 + (2 - k / (messages / 3)); /* tag 2 first, then 1, then 0 */
        tern_dtype dtype = (tern_dtype)(i / 3 % TERN_DTYPE_COUNT);
        size_t count = i % 2 ? most : (size_t)i;
        tern_recv(f.group, f.plain, count, dtype, 0, i % 3, NULL, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, message_is(f.plain, count * tern_dtype_bytes(dtype), (uint64_t)i));
    }
    for (int i = 0; i < messages && rank == 0; i++) tern_work_wait(works[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_order_of_a_tag(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, order_body, NULL));
}

/* Sends more messages than the buffers hold before the first one is received. Over hosts they hold one. */
static int flood_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { most = 2500 };
    (void)arg;
    fixture f;
    int messages = takes_turns() ? most / 5 : most;
    static _Thread_local int64_t numbers[most];
    static _Thread_local tern_work *works[most];
    if (fixture_open(&f, rank, boot, 64)) return 1;
    for (int i = 0; i < messages && rank == 0; i++) {
        numbers[i] = i;
        works[i] = tern_isend(f.group, &numbers[i], i % 5, TERN_U8, 1, i % 5, &f.err);
    }
    tern_barrier(f.group, &f.err);
    for (int i = 0; i < messages && rank == 1; i++)
        tern_recv(f.group, &numbers[i], i % 5, TERN_U8, 0, i % 5, NULL, &f.err);
    for (int i = 0; i < messages && rank == 0; i++) tern_work_wait(works[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int i = 0; i < messages; i++) RANK_CHECK(rank, !memcmp(&numbers[i], &(int64_t){i}, (size_t)(i % 5)));
    return fixture_close(&f);
}

static void test_flood(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, flood_body, NULL));
    if (!takes_turns()) assert_ranks_ok(ranks_run_threads(2, flood_body, NULL));
}

/* Rank 0 receives from any rank, like a server, and answers the sender. */
static int server_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { asks = 20 };
    (void)arg;
    fixture f;
    int64_t number = 0, counts[RANKS_MAX] = {0};
    if (fixture_open(&f, rank, boot, 64)) return 1;
    for (int i = 0; i < asks * (f.world - 1) && rank == 0; i++) {
        int source;
        tern_recv(f.group, &number, 1, TERN_I64, TERN_ANY_SOURCE, 7, &source, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, number == source * 1000 + counts[source]++);
        tern_send(f.group, &number, 1, TERN_I64, source, 8, &f.err);
    }
    for (int i = 0; i < asks && rank != 0; i++) {
        int64_t answer = 0, ask = rank * 1000 + i;
        tern_send(f.group, &ask, 1, TERN_I64, 0, 7, &f.err);
        tern_recv(f.group, &answer, 1, TERN_I64, 0, 8, NULL, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, answer == ask);
    }
    return fixture_close(&f);
}

static void test_any_source(void **state)
{
    (void)state;
    for (size_t i = 1; i < TERN__COUNT(worlds); i++)
        if (has_world(worlds[i])) assert_ranks_ok(ranks_run(worlds[i], server_body, NULL));
}

/* A long message that is not received yet delays no other one, and collectives run beside messages. */
static int beside_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { bytes = 4 << 20 };
    (void)arg;
    fixture f;
    float sum = 1;
    char byte = 5;
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    memset(f.plain, rank + 1, bytes);
    tern_work *work = rank == 0 ? tern_isend(f.group, f.plain, bytes, TERN_U8, 1, 0, &f.err) : NULL;
    if (rank == 0) tern_send(f.group, &byte, 1, TERN_U8, 1, 1, &f.err);
    if (rank == 1) tern_recv(f.group, f.expected, 1, TERN_U8, 0, 1, NULL, &f.err);
    RANK_CHECK(rank, rank != 1 || f.expected[0] == 5);
    tern_all_reduce(f.group, &sum, 1, TERN_F32, TERN_SUM, &f.err);
    RANK_CHECK(rank, sum == (float)f.world);
    if (rank == 1) tern_recv(f.group, f.plain, bytes, TERN_U8, 0, 0, NULL, &f.err);
    tern_barrier(f.group, &f.err); /* meanwhile rank 0's message advances */
    RANK_CHECK_OK(rank, f.err);
    if (work) RANK_CHECK(rank, tern_work_test(work, &f.err) == TERN_OK && !tern_work_wait(work, &f.err));
    RANK_CHECK(rank, rank > 1 || (f.plain[0] == 1 && f.plain[bytes - 1] == 1));
    return fixture_close(&f);
}

static void test_beside_other_works(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, beside_body, NULL));
    assert_ranks_ok(ranks_run(3, beside_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, beside_body, NULL));
}

/* A rank that only tests another work advances its messages, too. */
static int polling_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { bytes = 2 << 20 };
    (void)arg;
    fixture f;
    float sum = 1;
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    tern_work *send = rank == 0 ? tern_isend(f.group, f.plain, bytes, TERN_U8, 1, 0, &f.err) : NULL;
    if (rank == 1) tern_recv(f.group, f.plain, bytes, TERN_U8, 0, 0, NULL, &f.err);
    tern_work *work = tern_all_reduce_post(f.group, &sum, 1, TERN_F32, TERN_SUM, &f.err);
    RANK_CHECK_OK(rank, f.err);
    int status;
    while ((status = tern_work_test(work, &f.err)) == TERN_PENDING) {
    }
    RANK_CHECK(rank, status == TERN_OK && sum == (float)f.world);
    tern_work_wait(work, &f.err);
    if (send) tern_work_wait(send, &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_asking_after_one_work_moves_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, polling_body, NULL));
}

/* The same tag in two groups at once: their messages are kept apart. */
static int two_groups_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    int64_t in[2] = {0}, out[2] = {10 + rank, 20 + rank};
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_group *turned = tern_group_split(f.group, 0, -rank, NULL, &f.err);
    tern_group *groups[] = {f.group, turned};
    tern_work *works[2] = {0};
    for (int i = 0; i < 2; i++)
        works[i] = tern_isend(groups[i], &out[i], 1, TERN_I64, 1 - tern_group_rank(groups[i]), 0, &f.err);
    for (int i = 1; i >= 0; i--) tern_recv(groups[i], &in[i], 1, TERN_I64, TERN_ANY_SOURCE, 0, NULL, &f.err);
    for (int i = 0; i < 2; i++) tern_work_wait(works[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, tern_group_rank(turned) == 1 - rank);
    RANK_CHECK(rank, in[0] == 10 + 1 - rank && in[1] == 20 + 1 - rank);
    tern_group_close(turned);
    return fixture_close(&f);
}

static void test_groups_keep_their_messages_apart(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, two_groups_body, NULL));
}

/* ---- batches and byte strings ---- */

/* All to all, in one batch. */
static int batch_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { count = 5000 };
    (void)arg;
    fixture f;
    tern_p2p ops[2 * RANKS_MAX];
    tern_work *works[2 * RANKS_MAX];
    int n = 0;
    if (fixture_open(&f, rank, boot, (size_t)boot->world * count * 4)) return 1;
    for (int peer = 0; peer < f.world; peer++) {
        if (peer == rank) continue;
        char *in = f.plain + (size_t)peer * count * 4, *out = f.expected + (size_t)peer * count * 4;
        message_put(out, (size_t)count * 4, (uint64_t)(rank * 100 + peer));
        ops[n++] = (tern_p2p){TERN_SEND, out, count, TERN_F32, peer, 9};
        ops[n++] = (tern_p2p){TERN_RECV, in, count, TERN_F32, peer, 9};
    }
    RANK_CHECK(rank, !tern_batch_isend_irecv(f.group, ops, n, works, &f.err));
    for (int i = 0; i < n; i++) tern_work_wait(works[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    for (int peer = 0; peer < f.world; peer++)
        RANK_CHECK(rank, peer == rank || message_is(f.plain + (size_t)peer * count * 4, (size_t)count * 4,
                                                    (uint64_t)(peer * 100 + rank)));
    RANK_CHECK(rank, !tern_batch_isend_irecv(f.group, NULL, 0, NULL, &f.err));
    return fixture_close(&f);
}

static void test_batches(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, batch_body, NULL));
}

static int bytes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const size_t sizes[] = {0, 1, 8, 8192, 100000, 3 << 20};
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 3 << 20)) return 1;
    for (size_t i = 0; i < TERN__COUNT(sizes); i++) {
        tern_bytes bytes = {NULL, 77};
        int source = -7, last = f.world - 1;
        message_put(f.plain, sizes[i], i);
        if (rank == last) tern_send_bytes(f.group, sizes[i] ? f.plain : NULL, sizes[i], 0, 3, &f.err);
        if (rank == 0) tern_recv_bytes(f.group, &bytes, i % 2 ? last : TERN_ANY_SOURCE, 3, &source, &f.err);
        RANK_CHECK_OK(rank, f.err);
        if (rank != 0) continue;
        RANK_CHECK(rank, source == last && bytes.count == sizes[i] && message_is(bytes.data, bytes.count, i));
        RANK_CHECK(rank, ((char *)bytes.data)[bytes.count] == '\0');
        tern_bytes_free(bytes.data);
    }
    tern_bytes_free(NULL);
    return fixture_close(&f);
}

/* In each turn the first message is kept until the second one has been received: over all turns more than is
 * kept at a time. */
static int later_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { turns = 700, bytes = 2000 };
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    for (int i = 0; i < turns; i++) {
        if (rank == 1) message_put(f.plain, bytes, (size_t)i);
        for (int k = 0; k < 2 && rank == 1; k++) tern_send(f.group, f.plain, bytes, TERN_U8, 0, k, &f.err);
        for (int k = 1; k >= 0 && rank == 0; k--) {
            tern_recv(f.group, f.plain, bytes, TERN_U8, 1, k, NULL, &f.err);
            RANK_CHECK(rank, f.err.code || message_is(f.plain, bytes, (size_t)i));
        }
        RANK_CHECK_OK(rank, f.err);
    }
    return fixture_close(&f);
}

static void test_kept_ones_make_room_again(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, later_body, NULL));
}

/* Strings of all ranks at once, received from any: the bytes come from the rank that the length came from. */
static int crowd_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { strings = 20 };
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 1000)) return 1;
    message_put(f.plain, (size_t)rank * 100, (size_t)rank);
    for (int i = 0; i < strings && rank != 0; i++)
        tern_send_bytes(f.group, f.plain, (size_t)rank * 100, 0, 3, &f.err);
    for (int i = 0; i < strings * (f.world - 1) && rank == 0; i++) {
        tern_bytes bytes = {0};
        int source = -7;
        tern_recv_bytes(f.group, &bytes, TERN_ANY_SOURCE, 3, &source, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, bytes.count == (size_t)source * 100);
        RANK_CHECK(rank, message_is(bytes.data, bytes.count, (size_t)source));
        tern_bytes_free(bytes.data);
    }
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_byte_strings(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, crowd_body, NULL));
    assert_ranks_ok(ranks_run(2, bytes_body, NULL));
    assert_ranks_ok(ranks_run(3, bytes_body, NULL));
}

/* A receive that no message has met can be given up, and a later one gets the message; one whose message is
 * on its way cannot. */
static int cancel_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { bytes = 2 << 20, few = 64 };
    (void)arg;
    fixture f;
    tern_work *works[2] = {0};
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    memset(f.expected, 7, few);
    for (int i = 0; i < 2 && rank == 1; i++) {
        works[0] = tern_irecv(f.group, f.expected, few, TERN_U8, i ? TERN_ANY_SOURCE : 0, 7, &f.err);
        RANK_CHECK(rank, works[0] && tern_work_cancel(works[0]));
    }
    tern_barrier(f.group, &f.err);
    message_put(f.plain, bytes, (uint64_t)rank);
    if (rank == 0) works[0] = tern_isend(f.group, f.plain, few, TERN_U8, 1, 7, &f.err);
    if (rank == 0) works[1] = tern_isend(f.group, f.plain, bytes, TERN_U8, 1, 8, &f.err);
    if (rank == 0) RANK_CHECK(rank, !tern_work_cancel(works[0]) && !tern_work_cancel(works[1]));
    if (rank == 1) tern_recv(f.group, f.plain, few, TERN_U8, 0, 7, NULL, &f.err);
    RANK_CHECK(rank, rank != 1 || message_is(f.plain, few, 0));
    for (int i = 0; i < few; i++) RANK_CHECK(rank, f.expected[i] == 7);
    if (rank == 1) works[0] = tern_irecv(f.group, f.expected, few, TERN_U8, 0, 9, &f.err);
    do {
        if (rank == 1) tern_work_test(works[0], &f.err); /* which looks at messages that have come */
        if (rank == 1) works[1] = tern_irecv(f.group, f.plain, bytes, TERN_U8, 0, 8, &f.err);
    } while (rank == 1 && works[1] && tern_work_cancel(works[1]));
    RANK_CHECK(rank, rank != 1 || tern_work_cancel(works[0]));
    for (int i = rank == 1; i < 2 && rank < 2; i++) tern_work_wait(works[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, rank != 1 || message_is(f.plain, bytes, 0));
    tern_work *work = tern_barrier_post(f.group, &f.err);
    RANK_CHECK(rank, !tern_work_cancel(NULL) && work && !tern_work_cancel(work));
    tern_work_wait(work, &f.err);
    return fixture_close(&f);
}

static void test_cancelled_receives(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, cancel_body, NULL));
    assert_ranks_ok(ranks_run(3, cancel_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, cancel_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_order_of_a_tag),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_any_source),
        cmocka_unit_test(test_kept_ones_make_room_again),
        cmocka_unit_test(test_beside_other_works),
        cmocka_unit_test(test_asking_after_one_work_moves_all),
        cmocka_unit_test(test_groups_keep_their_messages_apart),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_byte_strings),
        cmocka_unit_test(test_cancelled_receives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
