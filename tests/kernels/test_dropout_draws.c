/* test_dropout_draws.c - the loops for AVX-512, compiled with -ftrapping-math (tests/CMakeLists.txt). gcc 12
 * has vectorized them wrongly then: results were stored in 16-bit memory instead of added to it. */
#ifdef __x86_64__
#define TERN__WIDE
#define tern__dropout_wide tested
#else
#define tern__dropout_slim tested
#endif
#include "kernels/cpu/dropout_draws.c"

#include "check.h"

#include <stdio.h>

/* Of ones times 2, half are dropped. All results are exact. */
static void results_are_added(tern_dtype dtype)
{
    int64_t count = 5 * CHUNK + 21, kept = 0;
    uint64_t room[2][6 * CHUNK] = {{0}};
    tern__view x = tern__view_make(dtype, TERN__PLAIN, 1, &count), y = x;
    x.data = room[0];
    y.data = room[1];
    for (int64_t i = 0; i < count; i++) {
        tern__view_set(&x, i, 1);
        tern__view_set(&y, i, 8);
    }
    tern__dropout_attr attr = {.threshold = 1u << 31, .scale = 2, .key = 7};
    tern__call call = {.in = {&x}, .out = {&y}, .add = {true}, .attr = &attr};
    tested.drop(&call, 0, count);
    for (int64_t i = 0; i < count; i++) {
        double sum = tern__view_get(&y, i);
        assert_true(sum == 8 || sum == 10);
        kept += sum == 10;
    }
    assert_in_range(kept, count / 3, count * 2 / 3);
}

static void results_are_added_to_every_dtype(void **state)
{
    (void)state;
    if (!tern__is_wide()) skip_test("this CPU has no AVX-512");
    results_are_added(TERN_F64);
    results_are_added(TERN_F32);
    results_are_added(TERN_BF16);
    results_are_added(TERN_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_are_added_to_every_dtype)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
