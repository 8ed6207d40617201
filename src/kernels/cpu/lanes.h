/* lanes.h - vectors of floats. In a file that is compiled for each vector width (width.h) a vector has as
 * many floats as a register, otherwise sixteen, which are one register only in AVX-512. A block of
 * channels in the blocked layout has sixteen: TERN__PARTS vectors. Every function that takes or returns
 * vectors is forced inline: it is compiled for the target of its caller (TERN__SIMD), and no register is
 * passed between targets. Vectors are never compared: if they are wider than the target's registers gcc
 * compares element by element, so masks come from arithmetic on the bits. */
#ifndef TERN_SRC_KERNELS_CPU_LANES_H
#define TERN_SRC_KERNELS_CPU_LANES_H

#include "kernels/kernel.h"

#include <string.h>

#ifndef TERN__SLIM
#define TERN__LANES 16
#elif defined(__x86_64__)
#define TERN__LANES 8
#else
#define TERN__LANES 4
#endif
#define TERN__PARTS (TERN__BLOCK / TERN__LANES)

typedef float tern__lanes __attribute__((vector_size(4 * TERN__LANES)));
typedef int32_t tern__masks __attribute__((vector_size(4 * TERN__LANES))); /* -1 or 0, as comparisons give */

#define TERN__INLINE static inline __attribute__((always_inline))

#define TERN__EACH_PART(p) _Pragma("GCC unroll 4") for (int p = 0; p < TERN__PARTS; p++)

/* How many of a block's first n elements are in part p. */
TERN__INLINE int tern__lanes_in(int n, int p)
{
    return TERN__MAX(0, TERN__MIN(TERN__LANES, n - p * TERN__LANES));
}

/* Loads the first n floats at `from`, n <= TERN__LANES, the rest 0. Fast if n is the constant TERN__LANES. */
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

/* ---- 16-bit types: half.h's conversions, lane by lane ---- */

typedef uint16_t tern__halves __attribute__((vector_size(2 * TERN__LANES)));
typedef uint32_t tern__words __attribute__((vector_size(4 * TERN__LANES)));

/* Indices that interleave two vectors: the first half of the result, and the second. */
#if TERN__LANES == 16
#define TERN__ZIP_FIRST  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define TERN__ZIP_SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif TERN__LANES == 8
#define TERN__ZIP_FIRST  0, 8, 1, 9, 2, 10, 3, 11
#define TERN__ZIP_SECOND 4, 12, 5, 13, 6, 14, 7, 15
#else
#define TERN__ZIP_FIRST  0, 4, 1, 5
#define TERN__ZIP_SECOND 2, 6, 3, 7
#endif

/* The same within each four lanes: of the first two, and of the others. */
#if TERN__LANES == 16
#define TERN__ZIP_LOW  0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define TERN__ZIP_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#elif TERN__LANES == 8
#define TERN__ZIP_LOW  0, 8, 1, 9, 4, 12, 5, 13
#define TERN__ZIP_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#else
#define TERN__ZIP_LOW  0, 4, 1, 5
#define TERN__ZIP_HIGH 2, 6, 3, 7
#endif

/* Interleaves sums of two lanes of each vector: a in the even lanes, b in the odd ones. */
TERN__INLINE tern__lanes tern__lanes_add_pairs(tern__lanes a, tern__lanes b)
{
    return __builtin_shufflevector(a, b, TERN__ZIP_LOW) + __builtin_shufflevector(a, b, TERN__ZIP_HIGH);
}

/* name(v): transposes LANES vectors. In each round, four for sixteen vectors, every row is interleaved
 * with the one LANES / 2 further. */
#define TERN__DEFINE_TURN(name, type)                                                                        \
    TERN__INLINE void name(type v[TERN__LANES])                                                              \
    {                                                                                                        \
        _Pragma("GCC unroll 4") for (int round = 1; round < TERN__LANES; round *= 2)                         \
        {                                                                                                    \
            type to[TERN__LANES];                                                                            \
            _Pragma("GCC unroll 8") for (int i = 0; i < TERN__LANES / 2; i++)                                \
            {                                                                                                \
                const type a = v[i], b = v[i + TERN__LANES / 2];                                             \
                to[2 * i] = __builtin_shufflevector(a, b, TERN__ZIP_FIRST);                                  \
                to[2 * i + 1] = __builtin_shufflevector(a, b, TERN__ZIP_SECOND);                             \
            }                                                                                                \
            _Pragma("GCC unroll 16") for (int i = 0; i < TERN__LANES; i++) v[i] = to[i];                     \
        }                                                                                                    \
    }

/* -1 where a < b, for numbers below 2^31. */
TERN__INLINE tern__words tern__words_less(tern__words a, tern__words b)
{
    return (tern__words)((tern__masks)(a - b) >> 31);
}

TERN__INLINE tern__words tern__words_pick(tern__words where, tern__words yes, tern__words no)
{
    return (where & yes) | (~where & no);
}

/* Interleaves with zeros, which gcc compiles to one instruction if there is one. gcc 12 makes two halves of
 * __builtin_convertvector; a vector that is written element by element it may vectorize again, wrongly. */
TERN__INLINE tern__words tern__words_of(tern__halves h)
{
    return (tern__words)__builtin_shufflevector(h, (tern__halves){0}, TERN__ZIP_FIRST, TERN__ZIP_SECOND);
}

TERN__INLINE tern__lanes tern__lanes_of_bf16(tern__halves h)
{
    return (tern__lanes)(tern__words_of(h) << 16);
}

TERN__INLINE tern__halves tern__lanes_to_bf16(tern__lanes v)
{
    tern__words bits = (tern__words)v, infinity = (tern__words){0} + 0x7f800000;
    tern__words nan = tern__words_less(infinity, bits & 0x7fffffff);
    tern__words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(tern__words_pick(nan, bits >> 16 | 0x40, rounded), tern__halves);
}

/* v as a sum of two bf16: v rounded, and the rounded remainder. Together they equal v up to 2^-17 of it. */
typedef struct tern__lane_parts {
    tern__halves high, low;
} tern__lane_parts;

/* The same in the upper halves of words; the lower halves are undefined. */
typedef struct tern__word_parts {
    tern__words high, low;
} tern__word_parts;

/* Only of values that are not large (tern__lanes_large): others may have any parts. */
TERN__INLINE tern__word_parts tern__lanes_split_words(tern__lanes v)
{
    tern__words high = ((tern__words)v + 0x8000) & 0xffff0000;
    return (tern__word_parts){high, (tern__words)(v - (tern__lanes)high) + 0x8000};
}

TERN__INLINE tern__lane_parts tern__lanes_split(tern__lanes v)
{
    tern__word_parts w = tern__lanes_split_words(v);
    return (tern__lane_parts){__builtin_convertvector(w.high >> 16, tern__halves),
                              __builtin_convertvector(w.low >> 16, tern__halves)};
}

/* Large values are those from 2^50 on, infinities and NaN: they have no two parts, a zero times one of them
 * may be NaN, and sums of their products may overflow. Sets bit 31 of a lane for a large value; the bits of
 * several vectors are gathered with |. */
TERN__INLINE tern__words tern__lanes_large(tern__lanes v)
{
    return ((tern__words)v & 0x7fffffff) + (0x80000000u - 0x58800000u);
}

/* Whether bit 31 is set in any lane. */
TERN__INLINE bool tern__words_have_large(tern__words large)
{
    uint32_t any = 0;
    for (int l = 0; l < TERN__LANES; l++) any |= large[l];
    return any >> 31;
}

TERN__INLINE tern__lanes tern__lanes_of_f16(tern__halves h)
{
    const tern__words zero = {0}, bias = zero + (112u << 23), least = zero + (113u << 23);
    tern__words bits = tern__words_of(h), sign = (bits & 0x8000) << 16;
    tern__words rest = (bits & 0x7fff) << 13;
    tern__words small = (tern__words)((tern__lanes)(rest + least) - (tern__lanes)least);
    tern__words large =
        tern__words_pick(tern__words_less(rest, zero + (31u << 23)), rest + bias, rest | 0x7f800000);
    return (tern__lanes)(sign | tern__words_pick(tern__words_less(rest, zero + (1u << 23)), small, large));
}

TERN__INLINE tern__halves tern__lanes_to_f16(tern__lanes v)
{
    const tern__words zero = {0}, half = zero + 0x3f000000;
    tern__words bits = (tern__words)v, sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    tern__words small = (tern__words)((tern__lanes)rest + (tern__lanes)half) - half;
    tern__words normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    tern__words nan = tern__words_less(zero + 0x7f800000, rest);
    tern__words large = tern__words_pick(nan, zero + 0x7e00, zero + 0x7c00);
    large = tern__words_pick(tern__words_less(rest, zero + (143u << 23)), normal, large);
    large = tern__words_pick(tern__words_less(rest, zero + (113u << 23)), small, large);
    return __builtin_convertvector(sign | large, tern__halves);
}

/* Loads n elements, n <= TERN__LANES, from element `at` of memory in f32, bf16 or f16; the rest 0. With a
 * constant dtype only one of the three branches remains. */
TERN__INLINE tern__lanes tern__lanes_get(const void *from, tern_dtype dtype, int64_t at, int n)
{
    if (dtype == TERN_F32) return tern__lanes_load((const float *)from + at, n);
    tern__halves h = {0};
    memcpy(&h, (const uint16_t *)from + at, (size_t)n * sizeof(uint16_t));
    return dtype == TERN_BF16 ? tern__lanes_of_bf16(h) : tern__lanes_of_f16(h);
}

/* Stores or adds them. */
TERN__INLINE void tern__lanes_set(void *to, tern_dtype dtype, int64_t at, tern__lanes v, int n, bool add)
{
    if (add) v += tern__lanes_get(to, dtype, at, n);
    if (dtype == TERN_F32) {
        tern__lanes_store((float *)to + at, v, n);
        return;
    }
    tern__halves h = dtype == TERN_BF16 ? tern__lanes_to_bf16(v) : tern__lanes_to_f16(v);
    memcpy((uint16_t *)to + at, &h, (size_t)n * sizeof(uint16_t));
}

/* The sum of all lanes in double, by halves. */
TERN__INLINE double tern__lanes_sum(tern__lanes v)
{
    double sum[TERN__LANES];
    for (int l = 0; l < TERN__LANES; l++) sum[l] = (double)v[l];
    _Pragma("GCC unroll 4") for (int half = TERN__LANES / 2; half > 0;
                                 half /= 2) for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}

/* v where `keep` is -1, else 0. */
TERN__INLINE tern__lanes tern__lanes_where(tern__masks keep, tern__lanes v)
{
    return (tern__lanes)((tern__masks)v & keep);
}

/* max(v, 0), but NaN stays: among values with the sign bit set only NaN's bits exceed those of -infinity. */
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
