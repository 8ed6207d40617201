/* test_chunks.c - how works are cut and described, up to sizes beyond any test's memory. */
#include "check.h"

#include "comm/move/window/window.h"

#include <string.h>

static const uint64_t counts[] = {
    1,
    63,
    64,
    8192,
    100001,
    UINT64_C(1) << 23,
    UINT32_MAX - UINT64_C(1),
    UINT32_MAX,
    UINT64_C(1) << 32,
    (UINT64_C(1) << 32) + 1,
    UINT64_C(5000000000),
    (UINT64_C(1) << 40) + 3,
    UINT64_C(1) << 59,
};

/* The chunks of all slices together are all elements, and fit their counter. */
static void check_cut(tern_dtype dtype, uint64_t count, int world)
{
    const tern__met work = {.post = {.kind = TERN__ALL_REDUCE, .dtype = dtype}, .count = count};
    tern__cut cut;
    uint64_t chunks = 0, covered = 0;
    tern__cut_make(&cut, &work, world);
    for (int rank = 0; rank < world; rank++) {
        uint64_t low = TERN__MIN((uint64_t)rank * cut.slice, count), high = TERN__MIN(low + cut.slice, count);
        uint64_t here = tern__cut_chunks(&cut, &work, rank);
        assert_true(here * cut.chunk >= high - low);
        assert_true(!here || (here - 1) * cut.chunk < high - low);
        chunks += here;
        covered += high - low;
    }
    assert_int_equal(covered, count);
    assert_int_equal(cut.chunks, chunks);
    assert_in_range(chunks, 1, TERN__TAG_MAX);
}

static void test_chunks_cover_any_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(counts); i++)
        for (int world = 2; world <= 4096; world = world * 3 + 1)
            for (tern_dtype dtype = 0; dtype < TERN_DTYPE_COUNT; dtype++) check_cut(dtype, counts[i], world);
}

static void test_nothing_is_cut_of_nothing(void **state)
{
    (void)state;
    const tern__met barrier = {.post = {.kind = TERN__BARRIER, .dtype = TERN_U8}},
                    empty = {.post = {.kind = TERN__ALL_REDUCE}};
    tern__cut cut;
    tern__cut_make(&cut, &barrier, 3);
    assert_int_equal(cut.chunks, 0);
    tern__cut_make(&cut, &empty, 3);
    assert_int_equal(cut.chunks, 0);
}

static void test_large_works_in_words(void **state)
{
    (void)state;
    const tern__extent extents[] = {{0, 0, UINT64_C(3000000000)},
                                    {1, UINT64_C(1) << 40, UINT64_C(3000000000)}};
    tern__post post = {.kind = TERN__REDUCE_SCATTER,
                       .dtype = TERN_BF16,
                       .op = TERN_PRODUCT,
                       .extents = extents,
                       .extent_count = 2};
    tern__desc desc;
    char text[TERN__WORK_TEXT];
    tern__desc_write(&desc, &post);
    assert_int_equal(desc.count, UINT64_C(6000000000));
    tern__desc_text(&desc, 7, text, sizeof(text));
    assert_string_equal(text, "reduce_scatter of 6000000000 bf16, product (work 7)");
    post.total = UINT64_C(1) << 50;
    post.kind = TERN__BROADCAST;
    tern__desc_write(&desc, &post);
    tern__desc_text(&desc, 7, text, sizeof(text));
    assert_string_equal(text, "broadcast of 1125899906842624 bf16 from rank 0 (work 7)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_cover_any_size),
        cmocka_unit_test(test_nothing_is_cut_of_nothing),
        cmocka_unit_test(test_large_works_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
