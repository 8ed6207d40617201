/* test_lanes.c - splits a float into the sum of two bf16, unless it is large. */
#include "check.h"

#include "base/half.h"
#include "kernels/cpu/lanes.h"

#include <math.h>

/* The parts' sum differs from v by at most 2^-17 of it or, if the lower part is subnormal, by half the
 * smallest subnormal. Only what is not finite, or 2^50 and more, is large, and may have any parts. */
static void expect_split(float v, float high, float low, bool large)
{
    assert_true(large == !(fabsf(v) < 0x1p50f));
    if (large) return;
    if (!(fabs((double)v - high - low) <= fmax(fabs(v) * 0x1p-17, 0x1p-134)) || !isfinite(high) ||
        !(fabsf(low) <= fmaxf(fabsf(high) * 0x1p-7f, 0x1p-133f)))
        fail_msg("%a is split into %a and %a", (double)v, (double)high, (double)low);
}

TERN__SIMD static void expect_all_split(const uint32_t bits[TERN__LANES])
{
    float v[TERN__LANES];
    memcpy(v, bits, sizeof(v));
    tern__lane_parts parts = tern__lanes_split(tern__lanes_load(v, TERN__LANES));
    tern__words large = tern__lanes_large(tern__lanes_load(v, TERN__LANES));
    for (int l = 0; l < TERN__LANES; l++)
        expect_split(v[l], tern__bf16_to_f32(parts.high[l]), tern__bf16_to_f32(parts.low[l]), large[l] >> 31);
}

static void a_float_is_the_sum_of_its_parts(void **state)
{
    (void)state;
    for (uint64_t first = 0; first < UINT64_C(1) << 32; first += TERN__LANES * 1021) {
        uint32_t bits[TERN__LANES];
        for (uint32_t l = 0; l < TERN__LANES; l++) bits[l] = (uint32_t)first + l * 1021;
        expect_all_split(bits);
    }
}

/* The largest and smallest numbers, those around the limit of large ones, infinities and all NaNs. */
static void ends_of_the_range_are_split(void **state)
{
    (void)state;
    static const uint32_t ends[TERN__LANES] = {
        0x7f7fffff, 0xff7fffff, 0x58800000, 0xd87fffff, 0x00000001, 0x80000001, 0x00ffffff, 0x00000000,
        0x7f800000, 0xff800000, 0x7f800001, 0xff8000ff, 0x7fffffff, 0xffffffff, 0x7fff8000, 0x7fc00000};
    expect_all_split(ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_float_is_the_sum_of_its_parts),
        cmocka_unit_test(ends_of_the_range_are_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
