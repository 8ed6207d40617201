/* test_rng.c - the random number generator, compared with PyTorch's bits. */
#include "check.h"

#include "base/base.h"

#include <string.h>
#include <zlib.h>

/* Made by PyTorch 1.13.1 on an AVX2 machine: torch.rand(5), torch.randn(5 | 16 | 20), and
 * torch.empty(20).normal_(0.5, 0.02), each right after manual_seed. Float bits. */
typedef struct golden {
    uint64_t seed;
    uint32_t uniform5[5], normal5[5], normal16[16], normal20[20], scaled20[20];
} golden;

static const golden goldens[] = {
    {.seed = 0,
     .uniform5 = {0x3efe1558, 0x3f44aa2f, 0x3db533a8, 0x3e073300, 0x3e9d6686},
     .normal5 = {0x3fc53f5c, 0xbe963c50, 0xc00b7149, 0x3f1184b6, 0xbf8ad1a1},
     .normal16 = {0xbf901b85, 0xbf93808a, 0xbe804bd6, 0xbede255d, 0x3f594515, 0x3f312783, 0xbea1cc6d,
                  0xc0075fc1, 0x3ea50138, 0xbfa1b4f4, 0x3eb330ff, 0x3e9dc3bb, 0x3df56f77, 0x3f9e6b93,
                  0x3f8ef28e, 0xbe7d367c},
     .normal20 = {0xbf901b85, 0xbf93808a, 0xbe804bd6, 0xbede255d, 0x3f194d8b, 0xbfc70d5b, 0xbeaec6ca,
                  0x3fed2f4e, 0x3eefaa55, 0xbe217f5f, 0x3fb8c9db, 0x3e8837a1, 0x3fb1d6c0, 0x3fcb0d00,
                  0x3f72409c, 0xbf57fb33, 0x3f6e8c30, 0x3fa12737, 0x4000519a, 0x3d5c1b3a},
     .scaled20 = {0x3ef478ae, 0x3ef43328, 0x3efd6f20, 0x3efb8e9d, 0x3f0310e9, 0x3ef01369, 0x3efc8125,
                  0x3f097cc6, 0x3f02658b, 0x3efe6291, 0x3f07643c, 0x3f015cb7, 0x3f071d12, 0x3f081f3d,
                  0x3f04d855, 0x3ef75c5a, 0x3f04c55d, 0x3f067235, 0x3f0a43f8, 0x3f00466f}},
    {.seed = 42,
     .uniform5 = {0x3f61dc66, 0x3f6a3db3, 0x3ec406b8, 0x3f75950e, 0x3ec7e8d4},
     .normal5 = {0x3eac62ae, 0x3e03e69d, 0x3e7016e7, 0x3e6bdc6c, 0xbf8fb9c2},
     .normal16 = {0x3ff6a529, 0x3fbe5f53, 0x3f669567, 0xc006c0db, 0x3f2dacd5, 0xbf9e0591, 0xbd306786,
                  0xbfcd65ba, 0xbf408bf0, 0x3fd3095b, 0xbec8f2f6, 0xbfb3a966, 0xbf3a566e, 0xbf0f36d1,
                  0xbf44d2a0, 0x3f432f9f},
     .normal20 = {0x3ff6a529, 0x3fbe5f53, 0x3f669567, 0xc006c0db, 0xbf4214e2, 0x3f8a0650, 0x3f4d0144,
                  0x3fd71e93, 0x3eb63345, 0xbf2fc686, 0xbefc9934, 0x3e774893, 0xbe6d2eed, 0x3d2b0c00,
                  0xbe80ce7a, 0x3f5c1fb0, 0xbe9e9482, 0xbeca9a91, 0x3f4dac3c, 0xbf1f20e0},
     .scaled20 = {0x3f09dda5, 0x3f079d6a, 0x3f049c97, 0x3eea7081, 0x3ef83c9b, 0x3f05855f, 0x3f0419a0,
                  0x3f089ad3, 0x3f01d26f, 0x3ef8f80f, 0x3efaf2b2, 0x3f013c86, 0x3efda0d0, 0x3f0036bc,
                  0x3efd6c83, 0x3f046709, 0x3efcd412, 0x3efbf2ab, 0x3f041d0b, 0x3ef9a286}},
};

/* torch.randperm(10) after manual_seed: only the low 32 bits of the seed count. */
static const struct {
    uint64_t seed;
    int64_t order[10];
} permutations[] = {
    {0, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},          {1, {5, 6, 1, 2, 0, 8, 9, 3, 7, 4}},
    {42, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},         {4294967296, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
    {4294967301, {1, 4, 9, 6, 3, 5, 0, 2, 8, 7}}, {UINT64_MAX, {1, 4, 6, 2, 0, 5, 8, 7, 9, 3}},
};

typedef void draw_fn(tern_rng *rng, float *out, size_t n, double a, double b);

static void expect_draw(draw_fn *draw, uint64_t seed, double a, double b, const uint32_t *want, size_t n)
{
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(seed, &err);
    assert_ok(err);
    float got[20];
    draw(rng, got, n, a, b);
    tern_rng_free(rng);
    assert_memory_equal(got, want, n * sizeof(float));
}

static void draws_are_pytorchs(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(goldens); i++) {
        const golden *g = &goldens[i];
        expect_draw(tern_rng_uniform, g->seed, 0, 1, g->uniform5, 5);
        expect_draw(tern_rng_normal, g->seed, 0, 1, g->normal5, 5);
        expect_draw(tern_rng_normal, g->seed, 0, 1, g->normal16, 16);
        expect_draw(tern_rng_normal, g->seed, 0, 1, g->normal20, 20);
        expect_draw(tern_rng_normal, g->seed, 0.5, 0.02, g->scaled20, 20);
    }
}

static void permutations_are_pytorchs(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(permutations); i++) {
        int64_t got[10];
        tern_rng *rng = tern_rng_new(permutations[i].seed, NULL);
        tern_rng_permutation(rng, got, 10);
        tern_rng_free(rng);
        assert_memory_equal(got, permutations[i].order, sizeof(got));
    }
}

/* The standard's own check value of mt19937: the 10,000th draw from seed 5489. */
static void engine_is_mt19937(void **state)
{
    (void)state;
    tern_rng *rng = tern_rng_new(5489, NULL);
    for (int i = 1; i < 10000; i++) tern_rng_u32(rng);
    assert_int_equal(tern_rng_u32(rng), 4123659995u);
    tern_rng_free(rng);
}

static void u64_is_two_draws_high_first(void **state)
{
    (void)state;
    tern_rng *halves = tern_rng_new(3, NULL), *whole = tern_rng_new(3, NULL);
    uint64_t high = tern_rng_u32(halves), low = tern_rng_u32(halves);
    assert_int_equal(tern_rng_u64(whole), high << 32 | low);
    tern_rng_free(halves);
    tern_rng_free(whole);
}

/* Seeding drops the second half of a pair that an odd number of normals has left. */
static void seed_restarts_the_stream(void **state)
{
    (void)state;
    float first[3], again[3];
    tern_rng *rng = tern_rng_new(8, NULL);
    tern_rng_normal(rng, first, 3, 0, 1);
    tern_rng_seed(rng, 8);
    tern_rng_normal(rng, again, 3, 0, 1);
    assert_memory_equal(again, first, sizeof(first));
    tern_rng_free(rng);
}

/* CRC-32 of torch.empty(65536).normal_(0.3, 1.7) and of .uniform_(-1 / 3, 0.9), seed 0: enough values for a
 * wrong last bit anywhere in the polynomials to show. */
static void many_draws_are_pytorchs(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static float got[N];
    tern_rng *rng = tern_rng_new(0, NULL);
    tern_rng_normal(rng, got, N, 0.3, 1.7);
    assert_int_equal(crc32(0, (const Bytef *)got, sizeof(got)), 0x04cda50a);
    tern_rng_seed(rng, 0);
    tern_rng_uniform(rng, got, N, -1.0 / 3, 0.9);
    assert_int_equal(crc32(0, (const Bytef *)got, sizeof(got)), 0xc108cf75);
    tern_rng_free(rng);
}

static void *refuse(size_t bytes, size_t align, void *ctx)
{
    (void)bytes, (void)align, (void)ctx;
    return NULL;
}

static void refuse_free(void *ptr, void *ctx)
{
    (void)ptr, (void)ctx;
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    tern_error err = {0};
    tern__allocator_replace(&(tern_allocator){.alloc = refuse, .free = refuse_free});
    tern_rng *rng = tern_rng_new(0, &err);
    tern__allocator_replace(NULL);
    assert_null(rng);
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_null(tern_rng_new(0, &err)); /* an error that is set is kept */
    tern_rng_free(NULL);
}

/* A program may draw data before it checks the error. */
static void of_null_everything_is_zero(void **state)
{
    (void)state;
    tern_error err = {0};
    float x[3] = {1, 2, 3};
    int64_t order[3] = {1, 2, 3};
    static char bytes[TERN_RNG_STATE_BYTES] = {1};
    tern_rng_seed(NULL, 3);
    assert_true(tern_rng_u32(NULL) == 0 && tern_rng_u64(NULL) == 0);
    tern_rng_uniform(NULL, x, 2, 1, 2);
    assert_true(x[0] == 0 && x[1] == 0 && x[2] == 3);
    tern_rng_normal(NULL, x + 1, 2, 1, 2);
    assert_true(x[1] == 0 && x[2] == 0);
    tern_rng_permutation(NULL, order, 2);
    tern_rng_permutation(NULL, order, -1);
    assert_true(order[0] == 0 && order[1] == 0 && order[2] == 3);
    tern_rng_state_get(NULL, bytes);
    assert_int_equal(bytes[0], 0);
    assert_int_equal(tern_rng_state_set(NULL, bytes, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "no rng");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_pytorchs),       cmocka_unit_test(permutations_are_pytorchs),
        cmocka_unit_test(engine_is_mt19937),        cmocka_unit_test(u64_is_two_draws_high_first),
        cmocka_unit_test(seed_restarts_the_stream), cmocka_unit_test(many_draws_are_pytorchs),
        cmocka_unit_test(no_memory_is_an_error),    cmocka_unit_test(of_null_everything_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
