/* dropout_draws.c - the random words of many blocks at a time, one block per lane of a vector. f32, bf16
 * and f16, converted in registers; and f64, whose scale is not rounded to f32. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/dropout_draws.h"
#include "kernels/cpu/lanes.h"

#if defined(__x86_64__) && defined(TERN__SLIM)
#include <emmintrin.h>
#endif

/* Blocks per vector. For a 64-bit product gcc generates up to sixteen instructions below AVX-512, while
 * SSE2, which every CPU has, multiplies two words with one. Zipping two vectors interleaves their
 * elements: first the lower halves, then the upper. */
#ifdef TERN__WIDE
#define LANES      8
#define ZIP_FIRST  0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_SECOND 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LANES      2
#define ZIP_FIRST  0, 2
#define ZIP_SECOND 1, 3
#endif
#define GROUPS 4 /* vectors that go through the rounds in parallel */
#define BLOCKS (LANES * GROUPS)
#define CHUNK  TERN__DROPOUT_CHUNK
#define PARTS  TERN__PARTS

/* One word of each block, in 64 bits, which hold its products. */
typedef uint64_t words __attribute__((vector_size(8 * LANES)));

/* The product of words below 2^32. */
TERN__INLINE words product(words a, uint32_t factor)
{
#if defined(__x86_64__) && defined(TERN__SLIM)
    const words b = (words){0} + factor;
    return (words)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return a * factor;
#endif
}

TERN__INLINE void first_counters(const tern__dropout_attr *a, uint64_t first, words c[4][GROUPS])
{
    uint64_t word[4][BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
        tern__philox_words counter = tern__dropout_counter(a, first + (uint64_t)b);
        for (int w = 0; w < 4; w++) word[w][b] = counter.word[w];
    }
    memcpy(c, word, sizeof(word));
}

TERN__INLINE void all_rounds(uint64_t key, words c[4][GROUPS])
{
#pragma GCC unroll 10
    for (int r = 0; r < TERN__PHILOX_ROUNDS; r++) {
        uint64_t k0 = tern__philox_key0(key, r), k1 = tern__philox_key1(key, r);
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) {
            words even = product(c[0][g], TERN__PHILOX_EVEN), odd = product(c[2][g], TERN__PHILOX_ODD);
            c[0][g] = (odd >> 32) ^ c[1][g] ^ k0;
            c[2][g] = (even >> 32) ^ c[3][g] ^ k1;
            c[1][g] = odd & 0xffffffffu;
            c[3][g] = even & 0xffffffffu;
        }
    }
}

/* Stores vectors of each word of a block, block after block. */
TERN__INLINE void put_blocks(const words c[4], float *to)
{
    words first = c[0] | c[1] << 32, second = c[2] | c[3] << 32;
    words v[2] = {__builtin_shufflevector(first, second, ZIP_FIRST),
                  __builtin_shufflevector(first, second, ZIP_SECOND)};
    memcpy(to, v, sizeof(v));
}

/* The factors of BLOCKS blocks. A word minus the threshold is negative if the word is below it; the sign
 * clears the scale's bits. */
TERN__INLINE void draw_blocks(const tern__dropout_attr *a, uint64_t first, float *to)
{
    words c[4][GROUPS];
    float scale = (float)a->scale;
    uint32_t scale_bits;
    memcpy(&scale_bits, &scale, sizeof(scale_bits));
    first_counters(a, first, c);
    all_rounds(a->key, c);
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) {
        words kept[4];
        for (int w = 0; w < 4; w++) kept[w] = scale_bits & (((c[w][g] - a->threshold) >> 63) - 1);
        put_blocks(kept, to + 4 * LANES * g);
    }
}

/* The factors of the elements of a chunk from block `first` on. */
TERN__INLINE void draw(const tern__dropout_attr *a, uint64_t first, float to[CHUNK])
{
    for (int b = 0; b < CHUNK / 4; b += BLOCKS) draw_blocks(a, first + (uint64_t)b, to + 4 * b);
}

/* The operands' memory. */
typedef struct memory {
    const void *x;
    void *y;
    bool add;
} memory;

TERN__INLINE memory memory_of(const tern__call *call)
{
    return (memory){call->in[0]->data, call->out[0]->data, call->add[0]};
}

/* Multiplies n elements from `at` on, n <= TERN__LANES. */
TERN__INLINE void multiply(const memory *m, int64_t at, tern__lanes factor, int n, tern_dtype dtype)
{
    tern__lanes_set(m->y, dtype, at, tern__lanes_get(m->x, dtype, at, n) * factor, n, m->add);
}

TERN__INLINE void drop_of(const tern__call *call, int64_t first, int64_t last, tern_dtype dtype)
{
    const memory m = memory_of(call);
    float f[CHUNK];
    for (int64_t at = first; at < last; at += CHUNK) {
        int64_t n = TERN__MIN(CHUNK, last - at), i = 0;
        draw(call->attr, (uint64_t)at / 4, f);
        for (; i + TERN__LANES <= n; i += TERN__LANES)
            multiply(&m, at + i, tern__lanes_load(f + i, TERN__LANES), TERN__LANES, dtype);
        for (; i < n; i++) multiply(&m, at + i, (tern__lanes){0} + f[i], 1, dtype);
    }
}

/* n elements times the scale, or 0 where `kept` is 0; `kept` has one number per element, or with step 0
 * one for all. */
TERN__INLINE void multiply_f64(const tern__call *call, int64_t at, int64_t n, const float *kept, int step)
{
    double scale = ((const tern__dropout_attr *)call->attr)->scale, *y = (double *)call->out[0]->data + at;
    const double *x = (const double *)call->in[0]->data + at;
    bool add = call->add[0];
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
    {
        double v = x[i] * (kept[i * step] != 0 ? scale : 0);
        y[i] = add ? y[i] + v : v;
    }
}

TERN__INLINE void drop_f64(const tern__call *call, int64_t first, int64_t last)
{
    float f[CHUNK];
    for (int64_t at = first; at < last; at += CHUNK) {
        draw(call->attr, (uint64_t)at / 4, f);
        multiply_f64(call, at, TERN__MIN(CHUNK, last - at), f, 1);
    }
}

TERN__SIMD static void dropout_drop(const tern__call *call, int64_t first, int64_t last)
{
    if (call->in[0]->dtype == TERN_F64)
        drop_f64(call, first, last);
    else if (call->in[0]->dtype == TERN_F32)
        drop_of(call, first, last, TERN_F32);
    else if (call->in[0]->dtype == TERN_BF16)
        drop_of(call, first, last, TERN_BF16);
    else
        drop_of(call, first, last, TERN_F16);
}

TERN__SIMD static void draw_all(const tern__dropout_attr *a, int64_t first, int64_t chunks, float *to)
{
    for (int64_t i = 0; i < chunks; i++) draw(a, (uint64_t)((first + i) * CHUNK / 4), to + i * CHUNK);
}

/* ---- whole channels ---- */

/* Fewer elements than a block belong to one channel. */
TERN__INLINE void scale_of(const tern__dropout_planes *p, int64_t first, int64_t last, tern_dtype dtype)
{
    const memory m = memory_of(p->call);
    while (first < last) {
        int64_t plane = first / p->size, end = TERN__MIN(last, (plane + 1) * p->size), i = first;
        tern__lanes factor[PARTS];
        TERN__EACH_PART(k)
        factor[k] = p->width == 1
                        ? (tern__lanes){0} + p->factor[plane]
                        : tern__lanes_load(p->factor + plane * TERN__BLOCK + k * TERN__LANES, TERN__LANES);
        for (; i + TERN__BLOCK <= end; i += TERN__BLOCK)
            TERN__EACH_PART(k) multiply(&m, i + k * TERN__LANES, factor[k], TERN__LANES, dtype);
        for (; i < end; i += TERN__LANES)
            multiply(&m, i, factor[0], (int)TERN__MIN(TERN__LANES, end - i), dtype);
        first = end;
    }
}

TERN__INLINE void scale_f64(const tern__dropout_planes *p, int64_t first, int64_t last)
{
    for (int64_t end; first < last; first = end) {
        int64_t plane = first / p->size;
        end = TERN__MIN(last, (plane + 1) * p->size);
        multiply_f64(p->call, first, end - first, &p->factor[plane], 0);
    }
}

TERN__SIMD static void dropout_scale(const tern__dropout_planes *p, int64_t first, int64_t last)
{
    if (p->call->in[0]->dtype == TERN_F64)
        scale_f64(p, first, last);
    else if (p->call->in[0]->dtype == TERN_F32)
        scale_of(p, first, last, TERN_F32);
    else if (p->call->in[0]->dtype == TERN_BF16)
        scale_of(p, first, last, TERN_BF16);
    else
        scale_of(p, first, last, TERN_F16);
}

const tern__dropout_fns TERN__OF_WIDTH(tern__dropout) = {dropout_drop, draw_all, dropout_scale};
