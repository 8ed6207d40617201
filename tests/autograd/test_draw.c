/* test_draw.c - a scope's random numbers: on several ranks, step by step, and when a run is resumed. */
#include "comm/move/backend.h"
#include "comm/ranks.h"

#define COUNT 1000

/* Draws one mask as the scope's rank sees it. */
static void draw(tern_scope *scope, float mask[COUNT])
{
    tern_tensor *ones = tern_full(scope, TERN_F32, 1, (int64_t[]){COUNT}, 1);
    tern_tensor_read(tern_dropout(scope, ones, 0.5), mask, COUNT * sizeof(float), NULL);
}

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, COUNT * sizeof(float)) == 0;
}

/* Rank 0 draws the same numbers as a scope without a group. Every other rank draws its own, the same in
 * every run. */
static int own_stream_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    static float mine[COUNT], again[COUNT], alone[COUNT], all[3 * COUNT];
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *scope = tern_scope_new(device, world, &err), *single = tern_scope_new(device, NULL, &err);
    RANK_CHECK_OK(rank, err);
    draw(single, alone);
    draw(scope, mine);
    tern_scope_seed(scope, 0, 0);
    draw(scope, again);
    tern_all_gather(world, mine, all, COUNT, TERN_F32, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, same(mine, again));
    RANK_CHECK(rank, same(mine, alone) == (rank == 0));
    for (int i = 0; i < 3; i++) RANK_CHECK(rank, same(mine, all + i * COUNT) == (rank == i));
    tern_scope_free(single);
    tern_scope_free(scope);
    tern_device_close(device);
    tern_group_close(world);
    return 0;
}

static void each_rank_draws_its_own(void **state)
{
    (void)state;
    ranks r = ranks_run(3, own_stream_body, NULL);
    assert_ranks_ok(r);
}

static void steps_are_counted_and_taken_up_again(void **state)
{
    (void)state;
    enum { STEPS = 3, DRAWS = 2 };
    static float masks[STEPS][DRAWS][COUNT], again[COUNT];
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    tern_scope_seed(scope, 7, 0);
    for (int s = 0; s < STEPS; s++) {
        for (int d = 0; d < DRAWS; d++) draw(scope, masks[s][d]);
        assert_int_equal(tern_scope_end(scope, NULL), TERN_OK);
    }
    for (int i = 0; i < STEPS * DRAWS; i++)
        for (int j = 0; j < STEPS * DRAWS; j++)
            assert_int_equal(same(masks[i / DRAWS][i % DRAWS], masks[j / DRAWS][j % DRAWS]), i == j);
    for (int s = STEPS - 1; s >= 0; s--) { /* a run that is resumed at step s */
        tern_scope *resumed = tern_scope_new(device, NULL, &err);
        tern_scope_seed(resumed, 7, (uint64_t)s);
        for (int d = 0; d < DRAWS; d++) {
            draw(resumed, again);
            assert_true(same(again, masks[s][d]));
        }
        tern_scope_free(resumed);
    }
    tern_scope_seed(scope, 8, 0);
    draw(scope, again);
    assert_false(same(again, masks[0][0]));
    tern_scope_free(scope);
    tern_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_draws_its_own),
        cmocka_unit_test(steps_are_counted_and_taken_up_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
