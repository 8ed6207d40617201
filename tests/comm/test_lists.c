/* test_lists.c - many buffers as one work: the result is that of one call per buffer. Buffers are in
 * windows, ordinary memory or both; lists have any length and may contain empty buffers; calls block or are
 * posted. */
#include "elements.h"
#include "group_fixture.h"

enum { length = 9, most = 30011, room = (most + 8) * 8 + 64 };
static const size_t counts[length] = {0, 1, 5, 1000, 0, 77, most, 4096, 3};

static size_t first_of(size_t i)
{
    return i * 101;
}

/* Places the buffers one after the other; those with odd numbers go to `other`. */
static void lay_out(tern_span *list, char *at, char *other, size_t size, size_t parts, size_t shift)
{
    for (size_t i = 0; i < length; i++) {
        char **base = i % 2 ? &other : &at;
        list[i] = (tern_span){*base + shift, counts[i]};
        *base += counts[i] * size * parts + shift;
    }
}

static int settle(fixture *f, tern_work *work)
{
    if (work) tern_work_wait(work, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    return 0;
}

static int check_all_reduce(fixture *f, const tern_span *list, tern_dtype dtype, tern_reduce_op op,
                            bool posts)
{
    for (size_t i = 0; i < length; i++) elements_put(dtype, list[i].data, f->rank, first_of(i), counts[i]);
    tern_work *work = NULL;
    if (posts)
        work = tern_all_reduce_coalesced_post(f->group, list, length, dtype, op, &f->err);
    else
        tern_all_reduce_coalesced(f->group, list, length, dtype, op, &f->err);
    if (settle(f, work)) return 1;
    for (size_t i = 0; i < length; i++) {
        elements_reduced(dtype, op, f->expected, f->world, first_of(i), counts[i]);
        RANK_CHECK(f->rank, elements_match(dtype, list[i].data, f->expected, counts[i]));
    }
    return 0;
}

static int check_broadcast(fixture *f, const tern_span *list, tern_dtype dtype, bool posts)
{
    int root = (int)dtype % f->world;
    for (size_t i = 0; i < length; i++) elements_put(dtype, list[i].data, f->rank, first_of(i), counts[i]);
    tern_work *work = NULL;
    if (posts)
        work = tern_broadcast_coalesced_post(f->group, list, length, dtype, root, &f->err);
    else
        tern_broadcast_coalesced(f->group, list, length, dtype, root, &f->err);
    if (settle(f, work)) return 1;
    for (size_t i = 0; i < length; i++) {
        elements_put(dtype, f->expected, root, first_of(i), counts[i]);
        RANK_CHECK(f->rank, !memcmp(list[i].data, f->expected, counts[i] * tern_dtype_bytes(dtype)));
    }
    return 0;
}

static int check_all_gather(fixture *f, const tern_span *ins, const tern_span *outs, tern_dtype dtype,
                            bool posts)
{
    void *to[length];
    size_t size = tern_dtype_bytes(dtype);
    for (size_t i = 0; i < length; i++) {
        to[i] = outs[i].data;
        elements_put(dtype, ins[i].data, f->rank, first_of(i), counts[i]);
    }
    tern_work *work = NULL;
    if (posts)
        work = tern_all_gather_coalesced_post(f->group, ins, to, length, dtype, &f->err);
    else
        tern_all_gather_coalesced(f->group, ins, to, length, dtype, &f->err);
    if (settle(f, work)) return 1;
    for (size_t i = 0; i < length; i++)
        for (int rank = 0; rank < f->world; rank++) {
            elements_put(dtype, f->expected, rank, first_of(i), counts[i]);
            RANK_CHECK(f->rank, !memcmp((char *)to[i] + (size_t)rank * counts[i] * size, f->expected,
                                        counts[i] * size));
        }
    return 0;
}

static int check_reduce_scatter(fixture *f, const tern_span *ins, const tern_span *outs, tern_dtype dtype,
                                tern_reduce_op op, bool posts)
{
    const void *from[length];
    for (size_t i = 0; i < length; i++) {
        from[i] = ins[i].data;
        elements_put(dtype, ins[i].data, f->rank, first_of(i), counts[i] * (size_t)f->world);
    }
    tern_work *work = NULL;
    if (posts)
        work = tern_reduce_scatter_coalesced_post(f->group, from, outs, length, dtype, op, &f->err);
    else
        tern_reduce_scatter_coalesced(f->group, from, outs, length, dtype, op, &f->err);
    if (settle(f, work)) return 1;
    for (size_t i = 0; i < length; i++) {
        elements_reduced(dtype, op, f->expected, f->world, first_of(i) + (size_t)f->rank * counts[i],
                         counts[i]);
        RANK_CHECK(f->rank, elements_match(dtype, outs[i].data, f->expected, counts[i]));
    }
    return 0;
}

/* ---- all collectives ---- */

/* Ordinary memory, and windows if there are any. */
static int check_lists(fixture *f, char *more)
{
    tern_span list[length], many[length];
    char *window = f->window;
    size_t half = f->bytes / 2;
    int ways = window || !takes_turns() ? 3 : 1; /* of placing buffers, of which ordinary memory has one */
    for (int round = 0; round < ways * TERN_DTYPE_COUNT; round++) {
        tern_dtype dtype = (tern_dtype)(round % TERN_DTYPE_COUNT);
        tern_reduce_op op = (tern_reduce_op)(round % (TERN_BXOR + 1));
        if (!element_has_op(dtype, op)) op = TERN_SUM;
        char *at = window && round % 3 == 0 ? window : f->plain,
             *other = window && round % 3 != 1 ? window + half : more;
        lay_out(list, at, other, tern_dtype_bytes(dtype), 1, (size_t)(round % 5));
        if (check_all_reduce(f, list, dtype, op, round % 2) || check_broadcast(f, list, dtype, round % 2))
            return 1;
        lay_out(list, f->plain, window && round % 3 ? window : f->plain + half, tern_dtype_bytes(dtype), 1,
                1);
        lay_out(many, more, more + half, tern_dtype_bytes(dtype), (size_t)f->world, 3);
        if (check_all_gather(f, list, many, dtype, round % 2) ||
            check_reduce_scatter(f, many, list, dtype, op, round % 2))
            return 1;
    }
    return 0;
}

static int exact_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    size_t bytes = (size_t)room * 2 * (size_t)boot->world + 4096;
    if (fixture_open(&f, rank, boot, bytes)) return 1;
    elements_note_hosts(f.group);
    char *more = malloc(bytes);
    if (check_lists(&f, more) || fixture_map(&f) || check_lists(&f, more)) return 1;
    tern_all_reduce_coalesced(f.group, NULL, 0, TERN_F32, TERN_SUM, &f.err);
    RANK_CHECK_OK(rank, f.err);
    free(more);
    return fixture_close(&f);
}

static void test_exact_in_processes(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++)
        if (has_world(world)) assert_ranks_ok(ranks_run(world, exact_body, NULL));
    if (worlds[TERN__COUNT(worlds) - 1] > 4) assert_ranks_ok(ranks_run(7, exact_body, NULL));
}

static void test_exact_in_threads(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run_threads(3, exact_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_in_processes),
        cmocka_unit_test(test_exact_in_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
