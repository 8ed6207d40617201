/* test_half.c - the 16-bit floats, compared with the compiler's _Float16 and with arithmetic. */
#include "check.h"

#include "base/base.h"
#include "base/half.h"

#include <math.h>
#include <string.h>

static uint16_t compiled_f16(float value)
{
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof(bits));
    return bits;
}

static float compiled_f32(uint16_t bits)
{
    _Float16 half;
    memcpy(&half, &bits, sizeof(half));
    return (float)half;
}

static bool is_same(float a, float b)
{
    return tern__bits_of(a) == tern__bits_of(b) || (isnan(a) && isnan(b));
}

static void check_rounded(float value)
{
    uint16_t half = tern__f16_from_f32(value);
    if (isnan(value))
        assert_true((half & 0x7fff) > 0x7c00);
    else
        assert_int_equal(half, compiled_f16(value));
}

static void test_every_f16(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 1u << 16; half++)
        assert_true(is_same(tern__f16_to_f32((uint16_t)half), compiled_f32((uint16_t)half)));
}

/* For each f16: itself, the midpoint to the next one, and the f32 values next to these. */
static void test_f16_is_rounded_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 1u << 16; half++) {
        uint32_t bits = tern__bits_of(compiled_f32((uint16_t)half)), middle = bits + (1u << 12);
        for (int32_t by = -2; by <= 2; by++) {
            check_rounded(tern__float_of(bits + (uint32_t)by));
            check_rounded(tern__float_of(middle + (uint32_t)by));
            check_rounded((compiled_f32((uint16_t)half) + compiled_f32((uint16_t)(half + 1))) / 2);
        }
    }
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 65521)
        check_rounded(tern__float_of((uint32_t)bits));
}

/* Returns the nearer of the two neighbouring bf16, or the even one of two equally near. */
static void test_bf16_is_rounded_to_nearest_even(void **state)
{
    (void)state;
    for (uint64_t at = 0; at < UINT64_C(1) << 32; at += 4093) {
        uint32_t bits = (uint32_t)at, low = bits >> 16, rest = bits & 0xffff;
        float value = tern__float_of(bits);
        uint16_t half = tern__bf16_from_f32(value);
        if (isnan(value))
            assert_true(isnan(tern__bf16_to_f32(half)));
        else
            assert_int_equal(half, low + (rest > 0x8000 || (rest == 0x8000 && (low & 1))));
    }
    assert_int_equal(tern__bf16_from_f32(tern__float_of(0x3f808000)), 0x3f80);
    assert_int_equal(tern__bf16_from_f32(tern__float_of(0x3f818000)), 0x3f82);
    assert_int_equal(tern__bf16_from_f32(3.4e38f), 0x7f80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_f16),
        cmocka_unit_test(test_f16_is_rounded_to_nearest_even),
        cmocka_unit_test(test_bf16_is_rounded_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
