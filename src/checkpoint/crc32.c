/* crc32.c - zlib's CRC-32 takes longer than reading a file from memory, so where the CPU multiplies
 * polynomials, most of the bytes are folded away before it sees them.
 *
 * A CRC is the remainder of a polynomial. Sixteen bytes of it, moved on by 64, may be replaced by sixteen
 * that have the same remainder there: the upper half times x^(512+64) mod P plus the lower times x^512 mod P.
 * So four accumulators run over the bytes, 64 at a time, become one (moved on by 16 in the same way), and the
 * sixteen bytes left have the CRC that all had. (V. Gopal et al., Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction, Intel 2009; bits reflected, as in zip.) */
#include "checkpoint/crc32.h"

#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define FOLD __attribute__((target("pclmul,sse4.1")))

enum { LEAST = 64 };

FOLD static inline __m128i fold(__m128i sum, __m128i next, __m128i factors)
{
    __m128i low = _mm_clmulepi64_si128(sum, factors, 0x00), high = _mm_clmulepi64_si128(sum, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

FOLD static inline __m128i load(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)at);
}

/* Of `bytes`, a multiple of 64 and not 0. */
FOLD static uint32_t fold_all(uint32_t crc, const uint8_t *data, size_t bytes)
{
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i sum[4];
    uint8_t left[16];
    for (int i = 0; i < 4; i++) sum[i] = load(data + 16 * i);
    sum[0] = _mm_xor_si128(sum[0], _mm_cvtsi32_si128((int)~crc));
    for (size_t at = 64; at < bytes; at += 64)
        for (int i = 0; i < 4; i++) sum[i] = fold(sum[i], load(data + at + 16 * i), by_64);
    for (int i = 1; i < 4; i++) sum[0] = fold(sum[0], sum[i], by_16);
    _mm_storeu_si128((__m128i *)left, sum[0]);
    return (uint32_t)crc32_z(0xffffffff, left, sizeof(left)); /* what came before is in them already */
}

static size_t foldable(size_t bytes)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1") && bytes >= LEAST
               ? bytes / 64 * 64
               : 0;
}
#else
static size_t foldable(size_t bytes)
{
    (void)bytes;
    return 0;
}

static uint32_t fold_all(uint32_t crc, const uint8_t *data, size_t bytes)
{
    return (uint32_t)crc32_z(crc, data, bytes);
}
#endif

uint32_t tern__crc32(uint32_t crc, const void *data, size_t bytes)
{
    size_t folded = foldable(bytes);
    if (folded) crc = fold_all(crc, data, folded);
    return (uint32_t)crc32_z(crc, (const uint8_t *)data + folded, bytes - folded);
}
