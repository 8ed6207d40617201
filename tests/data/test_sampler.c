/* test_sampler.c - samplers, compared with PyTorch's, and refused arguments. */
#include "check.h"

#include "base/base.h"

#include <string.h>

static tern_sampler *distributed(int64_t n, int ranks, int rank, bool drop_last, bool pad)
{
    tern_error err = {0};
    tern_distributed_opts opts = tern_distributed_defaults();
    opts.drop_last = drop_last;
    opts.pad = pad;
    tern_sampler *sampler = tern_distributed_sampler_new(n, ranks, rank, &opts, &err);
    assert_ok(err);
    return sampler;
}

static void expect_indices(tern_sampler *sampler, int64_t epoch, const int64_t *want, int64_t count)
{
    tern_error err = {0};
    int64_t got[16];
    tern_sampler_epoch_set(sampler, epoch);
    assert_int_equal(tern_sampler_length(sampler), count);
    assert_int_equal(tern_sampler_indices(sampler, got, &err), TERN_OK);
    assert_memory_equal(got, want, (size_t)count * sizeof(int64_t));
}

/* Made by torch.utils.data.DistributedSampler, seed 0. */
static void distributed_is_pytorchs(void **state)
{
    (void)state;
    static const struct {
        int n, ranks, rank, epoch, count;
        bool drop_last;
        int64_t indices[4];
    } goldens[] = {
        {10, 3, 0, 0, 4, false, {4, 5, 0, 2}},
        {10, 3, 1, 0, 4, false, {1, 3, 8, 4}},
        {10, 3, 2, 0, 4, false, {7, 9, 6, 1}},
        {10, 3, 0, 1, 4, false, {5, 2, 9, 4}},
        {10, 3, 2, 1, 4, false, {1, 8, 7, 6}},
        {10, 3, 0, 0, 3, true, {4, 5, 0}},
        {10, 3, 2, 1, 3, true, {1, 8, 7}},
        {2, 5, 3, 0, 1, false, {1}},
        {2, 5, 4, 0, 1, false, {0}},
        {2, 5, 4, 1, 1, false, {1}},
        {3, 8, 0, 0, 1, false, {2}},
        {3, 8, 3, 0, 1, false, {2}},
        {3, 8, 7, 0, 1, false, {0}},
        {7, 7, 6, 1, 1, false, {4}},
        {2, 5, 0, 0, 0, true, {0}},
    };
    for (size_t i = 0; i < TERN__COUNT(goldens); i++) {
        tern_sampler *sampler =
            distributed(goldens[i].n, goldens[i].ranks, goldens[i].rank, goldens[i].drop_last, true);
        expect_indices(sampler, goldens[i].epoch, goldens[i].indices, goldens[i].count);
        tern_sampler_free(sampler);
    }
}

static void without_padding_every_sample_comes_once(void **state)
{
    (void)state;
    int seen[10] = {0};
    for (int rank = 0; rank < 4; rank++) {
        int64_t got[10];
        tern_sampler *sampler = distributed(10, 4, rank, false, false);
        assert_int_equal(tern_sampler_length(sampler), rank < 2 ? 3 : 2);
        tern_sampler_indices(sampler, got, NULL);
        for (int64_t i = 0; i < tern_sampler_length(sampler); i++) seen[got[i]]++;
        tern_sampler_free(sampler);
    }
    for (int i = 0; i < 10; i++) assert_int_equal(seen[i], 1);
}

/* Rank r of R has, of every R * block places of one rank's order, the block at r. A whole number of blocks is
 * for each: padded, dropped, or as far as the samples go. */
static void blocks_are_parts_of_one_order(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 7, 12, 23, 24, 60};
    int64_t order[60], got[120];
    for (size_t i = 0; i < TERN__COUNT(lengths); i++)
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int64_t block = 1; block <= 5; block++)
                for (int way = 0; way < 3; way++) {
                    int64_t n = lengths[i], turn = ranks * block, total = 0;
                    int64_t all = way == 0 ? n / turn * turn : way == 1 ? (n + turn - 1) / turn * turn : n;
                    tern_sampler *whole = tern_random_sampler_new(n, 5, NULL);
                    tern_sampler_indices(whole, order, NULL);
                    tern_sampler_free(whole);
                    for (int rank = 0; rank < ranks; rank++) {
                        tern_distributed_opts opts = tern_distributed_defaults();
                        opts.seed = 5;
                        opts.block = block;
                        opts.drop_last = way == 0;
                        opts.pad = way == 1;
                        tern_sampler *own = tern_distributed_sampler_new(n, ranks, rank, &opts, NULL);
                        int64_t count = tern_sampler_length(own);
                        assert_int_equal(tern_sampler_indices(own, got, NULL), TERN_OK);
                        for (int64_t k = 0; k < count; k++) {
                            int64_t place = k / block * turn + rank * block + k % block;
                            assert_true(place < all);
                            assert_int_equal(got[k], order[place % n]);
                        }
                        total += count;
                        tern_sampler_free(own);
                    }
                    assert_int_equal(total, all);
                }
}

/* Epoch e begins at e and counts down; with *ctx an index that is too large in epoch 1, and a failure in 2.
 */
static int count_down(int64_t epoch, int64_t count, int64_t *order, void *ctx, tern_error *err)
{
    const bool *fails = ctx;
    for (int64_t i = 0; i < count; i++) order[i] = (epoch + 10 - i) % 5;
    if (*fails && epoch == 1) order[count - 1] = 5;
    if (*fails && epoch == 2) return tern_error_set(err, "count_down", TERN_E_IO, "no order");
    return *fails && epoch == 3 ? TERN_E_IO : TERN_OK;
}

static void expect_failure(tern_sampler *sampler, int64_t epoch, int code, const char *text)
{
    tern_error err = {0};
    int64_t got[7];
    tern_sampler_epoch_set(sampler, epoch);
    assert_int_equal(tern_sampler_indices(sampler, got, &err), code);
    assert_non_null(strstr(err.text, text));
}

static void a_function_gives_the_order(void **state)
{
    (void)state;
    tern_error err = {0};
    bool fails = false;
    tern_sampler *sampler = tern_sampler_new(5, 7, count_down, &fails, &err);
    assert_ok(err);
    expect_indices(sampler, 0, (int64_t[]){0, 4, 3, 2, 1, 0, 4}, 7);
    expect_indices(sampler, 2, (int64_t[]){2, 1, 0, 4, 3, 2, 1}, 7);
    fails = true;
    expect_failure(sampler, 1, TERN_E_RANGE, "index 5 at place 6 of epoch 1, expected one in [0, 5)");
    expect_failure(sampler, 2, TERN_E_IO, "no order");
    expect_failure(sampler, 3, TERN_E_INVALID, "returned -");
    tern_sampler_free(sampler);
    assert_null(tern_sampler_new(5, 7, NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    err = (tern_error){0};
    assert_null(tern_sampler_new(5, -1, count_down, &fails, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
}

static void sequential_counts_up_in_every_epoch(void **state)
{
    (void)state;
    static const int64_t want[] = {0, 1, 2, 3, 4};
    tern_sampler *sampler = tern_sequential_sampler_new(5, NULL);
    expect_indices(sampler, 0, want, 5);
    expect_indices(sampler, 9, want, 5);
    tern_sampler_free(sampler);
}

/* torch.randperm(10) with seeds 0 and 1: the second is epoch 1 of seed 0. */
static void random_is_seeded_with_seed_plus_epoch(void **state)
{
    (void)state;
    static const int64_t seed0[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}, seed1[] = {5, 6, 1, 2, 0, 8, 9, 3, 7, 4};
    tern_sampler *sampler = tern_random_sampler_new(10, 0, NULL);
    expect_indices(sampler, 0, seed0, 10);
    expect_indices(sampler, 1, seed1, 10);
    assert_int_equal(tern_sampler_epoch_get(sampler), 1);
    expect_indices(sampler, 0, seed0, 10);
    tern_sampler_free(sampler);
}

static void no_samples_is_an_empty_epoch(void **state)
{
    (void)state;
    tern_sampler *samplers[] = {tern_sequential_sampler_new(0, NULL), tern_random_sampler_new(0, 1, NULL),
                                distributed(0, 3, 2, false, true)};
    for (size_t i = 0; i < TERN__COUNT(samplers); i++) {
        assert_int_equal(tern_sampler_length(samplers[i]), 0);
        assert_int_equal(tern_sampler_indices(samplers[i], NULL, NULL), TERN_OK);
        tern_sampler_free(samplers[i]);
    }
}

static void expect_refused(int64_t n, int ranks, int rank, const tern_distributed_opts *opts, int code,
                           const char *text)
{
    tern_error err = {0};
    assert_null(tern_distributed_sampler_new(n, ranks, rank, opts, &err));
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, text));
    assert_string_equal(err.func, "tern_distributed_sampler_new");
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    tern_distributed_opts none = {0}, newer = tern_distributed_defaults();
    newer.size += 8;
    tern_distributed_opts no_block = tern_distributed_defaults(), long_block = tern_distributed_defaults();
    no_block.block = 0;
    long_block.block = INT64_MAX;
    expect_refused(10, 4, 1, &no_block, TERN_E_RANGE, "block is 0, expected [1, ");
    expect_refused(10, 4, 1, &long_block, TERN_E_RANGE, "block is 9223372036854775807, expected [1, ");
    expect_refused(10, 4, 4, NULL, TERN_E_RANGE, "rank is 4, expected [0, 3] for 4 ranks");
    expect_refused(10, 4, -1, NULL, TERN_E_RANGE, "rank is -1");
    expect_refused(10, 0, 0, NULL, TERN_E_RANGE, "ranks is 0, expected at least 1");
    expect_refused(10, -3, 0, NULL, TERN_E_RANGE, "ranks is -3, expected at least 1");
    expect_refused(-1, 1, 0, NULL, TERN_E_INVALID, "n is -1");
    expect_refused(INT64_MAX, 1, 0, NULL, TERN_E_INVALID, "n is 9223372036854775807");
    expect_refused(10, 1, 0, &none, TERN_E_INVALID, "_defaults");
    expect_refused(10, 1, 0, &newer, TERN_E_UNSUPPORTED, "size is");
}

static void a_set_error_stops_everything(void **state)
{
    (void)state;
    tern_error err = {.code = TERN_E_IO};
    tern_sampler *sampler = tern_sequential_sampler_new(1, NULL);
    int64_t index = 7;
    assert_null(tern_sequential_sampler_new(1, &err));
    assert_null(tern_random_sampler_new(1, 0, &err));
    assert_null(tern_distributed_sampler_new(1, 1, 0, NULL, &err));
    assert_int_equal(tern_sampler_indices(sampler, &index, &err), TERN_E_IO);
    assert_int_equal(index, 7);
    tern_sampler_free(sampler);
    tern_sampler_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributed_is_pytorchs),
        cmocka_unit_test(without_padding_every_sample_comes_once),
        cmocka_unit_test(blocks_are_parts_of_one_order),
        cmocka_unit_test(a_function_gives_the_order),
        cmocka_unit_test(sequential_counts_up_in_every_epoch),
        cmocka_unit_test(random_is_seeded_with_seed_plus_epoch),
        cmocka_unit_test(no_samples_is_an_empty_epoch),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(a_set_error_stops_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
