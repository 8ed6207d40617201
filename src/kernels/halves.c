/* halves.c - converts arrays of bf16 or f16 to f32 and back. */
#include "kernels/halves.h"

#include "base/half.h"
#include "kernels/kernel.h"

#define DEFINE(name)                                                                                         \
    TERN__SIMD static void name##_widen(float *to, const uint16_t *from, uint64_t count)                     \
    {                                                                                                        \
        for (uint64_t i = 0; i < count; i++) to[i] = tern__##name##_to_f32(from[i]);                         \
    }                                                                                                        \
    TERN__SIMD static void name##_narrow(uint16_t *to, const float *from, uint64_t count)                    \
    {                                                                                                        \
        for (uint64_t i = 0; i < count; i++) to[i] = tern__##name##_from_f32(from[i]);                       \
    }
DEFINE(bf16)
DEFINE(f16)

void tern__halves_widen(tern_dtype dtype, float *to, const uint16_t *from, uint64_t count)
{
    (dtype == TERN_BF16 ? bf16_widen : f16_widen)(to, from, count);
}

void tern__halves_narrow(tern_dtype dtype, uint16_t *to, const float *from, uint64_t count)
{
    (dtype == TERN_BF16 ? bf16_narrow : f16_narrow)(to, from, count);
}
