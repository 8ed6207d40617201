/* test_collectives.c - every collective with every dtype and operation on 1, 2, 3, 4, 7 and 8 ranks,
 * compared with elements.h. Data are in ordinary memory and in windows at any alignment, from no element to
 * many chunks. */
#include "elements.h"
#include "group_fixture.h"

enum { most = 40001 };
static const size_t counts[] = {0, 1, 3, 64, 1023, 8193, most};

/* With TERN_TEST_FEW only a few elements of every dtype cross a line that is very slow. */
static bool has_few(void)
{
    return getenv("TERN_TEST_FEW") != NULL;
}

/* ---- the same bits on all ranks ---- */

static uint64_t hash_of(const char *buf, size_t bytes)
{
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)buf[i]) * 1099511628211u;
    return hash;
}

static int check_agreement(fixture *f, const char *buf, size_t bytes)
{
    uint64_t own = hash_of(buf, bytes), all[RANKS_MAX];
    tern_all_gather(f->group, &own, all, 1, TERN_I64, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    for (int rank = 0; rank < f->world; rank++) RANK_CHECK(f->rank, all[rank] == own);
    return 0;
}

/* ---- each collective ---- */

static int check_all_reduce(fixture *f, char *buf, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    elements_put(dtype, buf, f->rank, 0, count);
    elements_reduced(dtype, op, f->expected, f->world, 0, count);
    tern_all_reduce(f->group, buf, count, dtype, op, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, elements_match(dtype, buf, f->expected, count));
    size_t few = TERN__MIN(count, (size_t)(2 * elements_period));
    return op == TERN_SUM || op == TERN_MAX ? check_agreement(f, buf, few * tern_dtype_bytes(dtype)) : 0;
}

/* Only the root's memory is written. */
static int check_reduce(fixture *f, char *buf, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    int root = (int)((count + (size_t)op) % (size_t)f->world);
    elements_put(dtype, buf, f->rank, 0, count);
    if (f->rank == root)
        elements_reduced(dtype, op, f->expected, f->world, 0, count);
    else
        elements_put(dtype, f->expected, f->rank, 0, count);
    tern_reduce(f->group, buf, count, dtype, op, root, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, elements_match(dtype, buf, f->expected, count));
    return 0;
}

/* The result goes to other memory or, every other time, to the rank's own part of `buf`. Nothing else in
 * `buf` is written. */
static int check_reduce_scatter(fixture *f, char *buf, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    size_t size = tern_dtype_bytes(dtype), part = count * size, all = part * (size_t)f->world;
    char *own = buf + (size_t)f->rank * part, *out = count & 1 ? own : f->expected + all;
    elements_put(dtype, buf, f->rank, 0, count * (size_t)f->world);
    memset(f->expected + all, 0x55, part);
    tern_reduce_scatter(f->group, buf, out, count, dtype, op, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    elements_put(dtype, f->expected, f->rank, 0, count * (size_t)f->world);
    if (out == own) memcpy(f->expected + (own - buf), own, part);
    RANK_CHECK(f->rank, !memcmp(buf, f->expected, all));
    elements_reduced(dtype, op, f->expected, f->world, (size_t)f->rank * count, count);
    RANK_CHECK(f->rank, elements_match(dtype, out, f->expected, count));
    return 0;
}

static int check_broadcast(fixture *f, char *buf, tern_dtype dtype, int root, size_t count)
{
    elements_put(dtype, buf, f->rank, 0, count);
    elements_put(dtype, f->expected, root, 0, count);
    tern_broadcast(f->group, buf, count, dtype, root, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, !memcmp(buf, f->expected, count * tern_dtype_bytes(dtype)));
    return 0;
}

/* In place every other time. */
static int check_all_gather(fixture *f, char *buf, tern_dtype dtype, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype), all = part * (size_t)f->world;
    char *in = count & 1 ? buf + (size_t)f->rank * part : f->expected;
    memset(buf, 0x55, all);
    elements_put(dtype, in, f->rank, 0, count);
    tern_all_gather(f->group, in, buf, count, dtype, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    for (int rank = 0; rank < f->world; rank++)
        elements_put(dtype, f->expected + (size_t)rank * part, rank, 0, count);
    RANK_CHECK(f->rank, !memcmp(buf, f->expected, all));
    return 0;
}

/* ---- all collectives ---- */

/* A third of the operations, another third for each count, dtype and world, is also reduced to a root. In
 * turns only this third runs. */
static int check_dtype(fixture *f, char *buf, tern_dtype dtype, size_t which)
{
    size_t count = counts[which], part = (count + (size_t)f->world - 1) / (size_t)f->world;
    for (tern_reduce_op op = TERN_SUM; op <= TERN_BXOR; op++) {
        bool has_turn =
            (op + dtype + which + (size_t)f->world / 2) % 3 == 0; /* 3, 4 and 7 ranks: all thirds */
        if (!element_has_op(dtype, op) || (takes_turns() && !has_turn)) continue;
        if ((has_turn && check_reduce(f, buf, dtype, op, count)) ||
            check_all_reduce(f, buf, dtype, op, count) || check_reduce_scatter(f, buf, dtype, op, part))
            return 1;
    }
    int root = (int)(count % (size_t)f->world);
    return check_broadcast(f, buf, dtype, root, count) || check_all_gather(f, buf, dtype, part);
}

/* In turns each count and dtype runs with only one kind of memory; in subgroups with the other one. */
static bool memory_has_turn(bool splits, bool plain, size_t which)
{
    return !takes_turns() || (which + splits + plain) % 2;
}

static int check_counts(fixture *f, char *buf, size_t shift, bool splits)
{
    for (size_t c = 0; c < (has_few() ? 4 : TERN__COUNT(counts)); c++)
        for (tern_dtype dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++) {
            if (!memory_has_turn(splits, buf == f->plain, c + dtype) ||
                !check_dtype(f, buf + (c + dtype + shift) % 8, dtype, c))
                continue;
            fprintf(stderr, "rank %d of %d: %zu %s\n", f->rank, f->world, counts[c], tern_dtype_name(dtype));
            return 1;
        }
    return 0;
}

static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool *splits = arg;
    fixture f;
    size_t bytes = (size_t)2 * (most + 8) * 8 + 64;
    if (*splits ? fixture_split(&f, rank, boot, bytes) : fixture_open(&f, rank, boot, bytes)) return 1;
    elements_note_hosts(f.group);
    if (check_counts(&f, f.plain, (size_t)rank, *splits) || fixture_map(&f) ||
        check_counts(&f, f.window, 0, *splits))
        return 1;
    tern_barrier(f.group, &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_exact_in_processes(void **state)
{
    (void)state;
    bool splits = false;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        if (has_world(worlds[i])) assert_ranks_ok(ranks_run(worlds[i], exact_body, &splits));
}

static void test_exact_in_two_worlds(void **state)
{
    (void)state;
    bool splits = false;
    for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, exact_body, &splits));
}

/* Runs two groups made from the world at once. */
static void test_exact_in_groups(void **state)
{
    (void)state;
    bool splits = true;
    for (int world = 2; world <= 5; world += 3) assert_ranks_ok(ranks_run(world, exact_body, &splits));
    assert_ranks_ok(ranks_run_threads(4, exact_body, &splits));
}

static int roots_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, most * 4)) return 1;
    elements_note_hosts(f.group);
    for (int root = 0; root < boot->world; root++)
        if (check_broadcast(&f, f.plain, TERN_I32, root, most)) return 1;
    if (fixture_map(&f)) return 1;
    for (int root = 0; root < boot->world; root++)
        if (check_broadcast(&f, f.window, TERN_I32, root, most)) return 1;
    return fixture_close(&f);
}

static void test_broadcast_from_each_root(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        if (has_world(worlds[i])) assert_ranks_ok(ranks_run(worlds[i], roots_body, NULL));
}

/* ---- more than the ring can hold ---- */

enum { large = 600011 }; /* elements of all ranks together; too many even at one byte each */

static int check_large(fixture *f, tern_dtype dtype, tern_reduce_op op, size_t shift)
{
    size_t size = tern_dtype_bytes(dtype), part = large / (size_t)f->world, first = (size_t)f->rank * part;
    char *x = f->plain + shift, *out = f->expected + large * size;
    elements_put(dtype, x, f->rank, 0, large);
    elements_reduced(dtype, op, f->expected, f->world, 0, large);
    tern_reduce_scatter(f->group, x, out, part, dtype, op, &f->err);
    RANK_CHECK(f->rank, elements_match(dtype, out, f->expected + first * size, part));
    tern_all_reduce(f->group, x, large, dtype, op, &f->err);
    RANK_CHECK(f->rank, elements_match(dtype, x, f->expected, large));
    return check_broadcast(f, x, dtype, f->world - 1, large) || check_all_gather(f, x, dtype, part);
}

/* One operation for each dtype, another one in each world. */
static int large_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, (size_t)large * 16 + 64)) return 1;
    elements_note_hosts(f.group);
    for (tern_dtype dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++) {
        tern_reduce_op op = (tern_reduce_op)((2 * (int)dtype + f.world) % (TERN_BXOR + 1));
        if (!element_has_op(dtype, op)) op = TERN_SUM;
        if (!check_large(&f, dtype, op, (size_t)(3 * (int)dtype + rank) % 8)) continue;
        fprintf(stderr, "rank %d of %d: %s, operation %d\n", rank, f.world, tern_dtype_name(dtype), op);
        return 1;
    }
    return fixture_close(&f);
}

static void test_more_than_the_ring_holds(void **state)
{
    (void)state;
    for (size_t i = 1; i < TERN__COUNT(worlds); i += 2)
        assert_ranks_ok(ranks_run(worlds[i], large_body, NULL));
}

/* As threads, so that a race detector sees their accesses. */
static void test_ranks_as_threads(void **state)
{
    (void)state;
    bool splits = false;
    assert_ranks_ok(ranks_run_threads(3, exact_body, &splits));
    assert_ranks_ok(ranks_run_threads(4, roots_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, large_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_in_processes),       cmocka_unit_test(test_exact_in_groups),
        cmocka_unit_test(test_broadcast_from_each_root), cmocka_unit_test(test_more_than_the_ring_holds),
        cmocka_unit_test(test_ranks_as_threads),
    };
    const struct CMUnitTest few[] = {cmocka_unit_test(test_exact_in_two_worlds),
                                     cmocka_unit_test(test_exact_in_groups)};
    if (has_few()) return cmocka_run_group_tests(few, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
