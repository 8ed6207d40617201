/* test_subgroup.c - groups made from groups, on 1, 2, 3, 4 and 8 ranks, as processes and as threads: their
 * members, and that they work like any group, also several at once. */
#include "ledger.h"
#include "ranks.h"

#include "comm/move/backend.h"

static const int worlds[] = {1, 2, 3, 4, 8};

static tern_group *open_world(const tern__bootstrap *boot, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = RANKS_TIMEOUT_S;
    return tern__group_open_boot(boot, &opts, err);
}

static void run_all(ranks_body body)
{
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) {
        assert_ranks_ok(ranks_run(worlds[i], body, NULL));
        assert_ranks_ok(ranks_run_threads(worlds[i], body, NULL));
    }
}

/* ---- members ---- */

/* Checks the members by their rank in the world, and by a gather, in that order. */
static int check_members(int rank, tern_group *group, const int *members, int count)
{
    tern_error err = {0};
    int all[RANKS_MAX] = {0};
    RANK_CHECK(rank, group && tern_group_size(group) == count);
    RANK_CHECK(rank, members[tern_group_rank(group)] == rank);
    RANK_CHECK(rank, !strcmp(tern_group_backend(group), count == 1 ? "self" : "native"));
    for (int i = 0; i < count; i++) RANK_CHECK(rank, tern_group_world_rank(group, i) == members[i]);
    RANK_CHECK(rank, tern_group_world_rank(group, -1) == -1 && tern_group_world_rank(group, count) == -1);
    tern_all_gather(group, &rank, all, 1, TERN_I32, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < count; i++) RANK_CHECK(rank, all[i] == members[i]);
    return 0;
}

/* Groups by rank modulo 3, the highest rank first; only rank 2 joins none. */
static int split_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    int members[RANKS_MAX], count = 0;
    tern_group *world = open_world(boot, &err);
    tern_group *group = tern_group_split(world, rank == 2 ? -5 : rank % 3, -rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern_group_local_rank(world) == rank && tern_group_world_rank(world, rank) == rank);
    for (int i = boot->world - 1; i >= 0; i--)
        if (i % 3 == rank % 3 && i != 2) members[count++] = i;
    if (rank == 2)
        RANK_CHECK(rank, !group);
    else if (check_members(rank, group, members, count))
        return 1;
    RANK_CHECK(rank, !group || tern_group_local_rank(group) == rank);
    tern_group_close(group);
    tern_group_close(world);
    return 0;
}

static void test_split(void **state)
{
    (void)state;
    run_all(split_body);
}

/* Equal keys give the parent's order. The list's order does not matter. */
static int new_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    int members[RANKS_MAX], list[RANKS_MAX], count = 0, world_size = boot->world;
    for (int i = 0; i < world_size; i += 2) members[count++] = i;
    for (int i = 0; i < count; i++) list[i] = members[rank % 2 ? i : count - 1 - i];
    tern_group *world = open_world(boot, &err);
    tern_group *group = tern_group_new(world, list, count, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, (group != NULL) == (rank % 2 == 0));
    if (group && check_members(rank, group, members, count)) return 1;
    tern_group_close(group);
    group = tern_group_split(world, 7, 3, NULL, &err);
    for (int i = 0; i < world_size; i++) members[i] = i;
    if (check_members(rank, group, members, world_size)) return 1;
    tern_group_close(group);
    tern_group_close(world);
    return 0;
}

static void test_new(void **state)
{
    (void)state;
    run_all(new_body);
}

/* All but the last rank have made two groups when all make the next one. */
static int uneven_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    int members[RANKS_MAX];
    for (int i = 0; i < boot->world; i++) members[i] = i;
    tern_group *world = open_world(boot, &err);
    tern_group *most = tern_group_split(world, rank == boot->world - 1 ? -1 : 0, 0, NULL, &err);
    tern_group *again = most ? tern_group_split(most, 0, 0, NULL, &err) : NULL;
    tern_group *all = tern_group_split(world, 0, 0, NULL, &err);
    RANK_CHECK_OK(rank, err);
    if (check_members(rank, all, members, boot->world)) return 1;
    tern_group_close(all);
    tern_group_close(again);
    tern_group_close(most);
    tern_group_close(world);
    return 0;
}

static void test_after_uneven_numbers_of_groups(void **state)
{
    (void)state;
    run_all(uneven_body);
}

/* Halves of halves. Parents are closed before the groups made from them. */
static int nested_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    int members[RANKS_MAX] = {0};
    tern_group *group = open_world(boot, &err);
    RANK_CHECK_OK(rank, err);
    int first = 0, size = boot->world;
    while (size > 1) {
        int half = size / 2, upper = rank - first >= half;
        tern_group *part = tern_group_split(group, upper, 0, NULL, &err);
        RANK_CHECK_OK(rank, err);
        tern_group_close(group);
        group = part;
        first = upper ? first + half : first;
        size = upper ? size - half : half;
        for (int i = 0; i < size; i++) members[i] = first + i;
        if (check_members(rank, group, members, size)) return 1;
    }
    tern_group_close(group);
    return 0;
}

static void test_groups_of_groups(void **state)
{
    (void)state;
    run_all(nested_body);
}

/* ---- several at once ---- */

/* Each rank has a group with its lower neighbour, pair[0], and with its higher one, pair[1]. */
static void open_pairs(tern_group *world, tern_group *pair[2], tern_error *err)
{
    int size = tern_group_size(world), rank = tern_group_rank(world);
    for (int i = 0; i < size && size > 1; i++) {
        int list[2] = {i, (i + 1) % size};
        tern_group *group = tern_group_new(world, list, 2, NULL, err);
        if (rank == list[0]) pair[1] = group;
        if (rank == list[1]) pair[0] = group;
    }
}

/* Each rank posts and waits in another order, which matters only within a group. */
static int ring_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    int world_size = boot->world;
    tern_group *world = open_world(boot, &err), *pair[2] = {NULL};
    open_pairs(world, pair, &err);
    RANK_CHECK_OK(rank, err);
    for (int round = 0; round < 50; round++) {
        int64_t x[2];
        tern_work *works[2] = {NULL};
        for (int i = 0; i < 2; i++) {
            int side = (i + rank + round) % 2;
            x[side] = rank + round;
            if (pair[side])
                works[side] = tern_all_reduce_post(pair[side], &x[side], 1, TERN_I64, TERN_SUM, &err);
        }
        for (int i = 0; i < 2; i++) {
            int side = (i + (rank & 1)) % 2, other = (rank + (side ? 1 : world_size - 1)) % world_size;
            if (!works[side]) continue;
            tern_work_wait(works[side], &err);
            RANK_CHECK_OK(rank, err);
            RANK_CHECK(rank, x[side] == rank + other + 2 * round);
        }
    }
    tern_group_close(pair[rank & 1]);
    tern_group_close(world);
    tern_group_close(pair[!(rank & 1)]);
    return 0;
}

static void test_overlapping_pairs(void **state)
{
    (void)state;
    run_all(ring_body);
}

/* The ring cannot hold these, so every rank has to come back to each work many times while it waits for
 * another. */
enum { many = 200000 };

static int large_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool *polls = arg;
    tern_error err = {0};
    tern_group *world = open_world(boot, &err), *groups[3] = {NULL};
    tern_work *works[3] = {NULL};
    float *in = malloc(many * sizeof(*in)), *out = malloc(6 * many * sizeof(*out));
    open_pairs(world, groups, &err);
    groups[2] = tern_group_split(world, 0, -rank, NULL, &err);
    for (int i = 0; i < many; i++) in[i] = (float)(rank * 1000 + i % 1000);
    float *at = out;
    for (int i = 0; i < 3; i++) {
        int count = i < 2 ? many : many / boot->world;
        works[i] = tern_all_gather_post(groups[i], in, at, (size_t)count, TERN_F32, &err);
        at += 2 * many;
    }
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 3; i++) {
        int which = (i + rank) % 3, size = tern_group_size(groups[which]);
        while (*polls && tern_work_test(works[which], &err) == TERN_PENDING) continue;
        tern_work_wait(works[which], &err);
        RANK_CHECK_OK(rank, err);
        int count = which < 2 ? many : many / boot->world;
        for (int r = 0; r < size; r++)
            for (int k = 0; k < count; k++)
                RANK_CHECK(rank, out[which * 2 * many + r * count + k] ==
                                     (float)(tern_group_world_rank(groups[which], r) * 1000 + k % 1000));
    }
    for (int i = 0; i < 3; i++) tern_group_close(groups[i]);
    tern_group_close(world);
    free(in);
    free(out);
    return 0;
}

static void test_waiting_in_one_moves_all_on(void **state)
{
    (void)state;
    for (int polls = 0; polls < 2; polls++) {
        bool arg = polls;
        for (int world = 2; world <= 4; world++) {
            assert_ranks_ok(ranks_run(world, large_body, &arg));
            assert_ranks_ok(ranks_run_threads(world, large_body, &arg));
        }
    }
}

/* Groups that have been used before allocate no memory, whichever of them waits. */
static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    ledger books = {0};
    int before = 0;
    ledger_open(&books);
    tern_group *world = open_world(boot, &err), *groups[3] = {NULL};
    open_pairs(world, groups, &err);
    groups[2] = tern_group_split(world, 0, -rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 3; i++) {
            int which =
                i < 2 ? (i + rank) % 2 : 2; /* even ranks first use the lower pair, odd ones the higher */
            float x = 1;
            if (groups[which]) tern_all_reduce(groups[which], &x, 1, TERN_F32, TERN_SUM, &err);
            RANK_CHECK_OK(rank, err);
        }
        if (round == 2) before = atomic_load(&books.requests);
        if (round == 28) RANK_CHECK(rank, atomic_load(&books.requests) == before); /* no rank has left yet */
    }
    for (int i = 0; i < 3; i++) tern_group_close(groups[i]);
    tern_group_close(world);
    tern__allocator_replace(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 0;
}

static void test_warm_groups_allocate_nothing(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world += 1 + world / 2)
        assert_ranks_ok(ranks_run(world, warm_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_new),
        cmocka_unit_test(test_after_uneven_numbers_of_groups),
        cmocka_unit_test(test_groups_of_groups),
        cmocka_unit_test(test_overlapping_pairs),
        cmocka_unit_test(test_waiting_in_one_moves_all_on),
        cmocka_unit_test(test_warm_groups_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
