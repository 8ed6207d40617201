/* test_round.c - one call of every kind, and a store, whose clients are in other processes. CMakeLists.txt
 * also runs it on simulated hosts with system calls that move a few bytes at a time, and with a clock that
 * jumps. */
#include "round.h"

#include "comm/store/store.h"

static int group_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const size_t counts[] = {0, 1, 67, ROUND_MOST};
    fixture f;
    (void)arg;
    if (fixture_open(&f, rank, boot, ROUND_MOST * sizeof(int32_t))) return 1;
    for (size_t i = 0; i < TERN__COUNT(counts); i++)
        if (round_run(&f, counts[i])) return 1;
    return fixture_close(&f);
}

static void every_call(void **state)
{
    (void)state;
    for (int world = 2; world <= ROUND_RANKS; world++) assert_ranks_ok(ranks_run(world, group_body, NULL));
}

/* Each rank sets a value that the next one waits for, and all count together. */
static int store_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static char value[5000];
    tern_error err = {0};
    char key[32];
    int64_t sum = 0;
    size_t bytes = 0;
    (void)arg;
    tern_store *store = tern__store_open(boot, RANKS_TIMEOUT_S, &err);
    RANK_CHECK_OK(rank, err);
    for (size_t size = 0; size < sizeof(value); size += 1249) {
        memset(value, 'a' + rank, sizeof(value));
        snprintf(key, sizeof(key), "%zu/%d", size, rank);
        tern_store_set(store, key, value, size, &err);
        int before = (rank + boot->world - 1) % boot->world;
        snprintf(key, sizeof(key), "%zu/%d", size, before);
        const char *got = tern_store_get(store, key, &bytes, &err);
        RANK_CHECK_OK(rank, err);
        memset(value, 'a' + before, sizeof(value));
        RANK_CHECK(rank, bytes == size && !memcmp(got, value, size));
        tern_store_add(store, "all", 1, &sum, &err);
    }
    tern_store_barrier(store, "end", boot->world, &err);
    tern_store_add(store, "all", 0, &sum, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, sum == 5 * boot->world);
    tern_store_barrier(store, "gone", boot->world, &err);
    tern_store_close(store);
    return 0;
}

static void the_store(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, store_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call), cmocka_unit_test(the_store)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
