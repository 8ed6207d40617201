/* lanes.h - sixteen floats at a time: one AVX-512 register, two of AVX2. A block of channels in the blocked
 * layout is exactly that. Every function that takes or returns them is forced inline: it is compiled for the
 * target of its caller (TERN__SIMD), and no register is passed between targets. They are never compared:
 * where they are wider than the target's registers gcc compares them one by one, so masks come from
 * arithmetic on the bits. */
#ifndef TERN_SRC_KERNELS_CPU_LANES_H
#define TERN_SRC_KERNELS_CPU_LANES_H

#include "kernels/kernel.h"

#include <string.h>

#define TERN__LANES 16

typedef float tern__lanes __attribute__((vector_size(4 * TERN__LANES)));
typedef int32_t tern__masks __attribute__((vector_size(4 * TERN__LANES))); /* -1 or 0: what comparing gives */

#define TERN__INLINE static inline __attribute__((always_inline))

/* The first n floats at `from`, n <= 16, the rest 0. Fast where n is a constant 16. */
TERN__INLINE tern__lanes tern__lanes_load(const float *from, int n)
{
    tern__lanes v = {0};
    memcpy(&v, from, (size_t)n * sizeof(float));
    return v;
}

TERN__INLINE void tern__lanes_store(float *to, tern__lanes v, int n)
{
    memcpy(to, &v, (size_t)n * sizeof(float));
}

TERN__INLINE void tern__lanes_put(float *to, tern__lanes v, int n, bool add)
{
    tern__lanes_store(to, add ? tern__lanes_load(to, n) + v : v, n);
}

/* The sum of all lanes, in double, by halves. */
TERN__INLINE double tern__lanes_sum(tern__lanes v)
{
    double eight[8], four[4];
    for (int l = 0; l < 8; l++) eight[l] = (double)v[l] + (double)v[l + 8];
    for (int l = 0; l < 4; l++) four[l] = eight[l] + eight[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* v where `keep` is -1, else 0. */
TERN__INLINE tern__lanes tern__lanes_where(tern__masks keep, tern__lanes v)
{
    return (tern__lanes)((tern__masks)v & keep);
}

/* max(v, 0), but NaN stays: of what has its sign set, only NaN has more than infinity's bits. */
TERN__INLINE tern__lanes tern__lanes_relu(tern__lanes v)
{
    tern__masks bits = (tern__masks)v, nan = (0x7f800000 - (bits & 0x7fffffff)) >> 31;
    return tern__lanes_where(~(bits >> 31) | nan, v);
}

/* dy where y, a result of tern__lanes_relu, is not 0. */
TERN__INLINE tern__lanes tern__lanes_passed(tern__lanes y, tern__lanes dy)
{
    return tern__lanes_where((-((tern__masks)y & 0x7fffffff)) >> 31, dy);
}

#endif
