/* dropout.c - the random words of many blocks at a time, one block in each lane of a vector. f32, bf16 and
 * f16, converted in registers; f64, whose scale is not rounded to f32's. */
#include "kernels/dropout.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/space.h"

#include <string.h>

#define LANES  8 /* blocks in a vector                                  */
#define GROUPS 4 /* vectors that go through the rounds beside each other */
#define BLOCKS (LANES * GROUPS)
#define CHUNK  (4 * BLOCKS) /* elements that they decide about */

/* One word of eight blocks, each in 64 bits, where its products have room. */
typedef uint64_t words __attribute__((vector_size(8 * LANES)));

TERN__INLINE void first_counter(const tern__dropout_attr *a, uint64_t first, words c[4][GROUPS])
{
    for (int b = 0; b < BLOCKS; b++) {
        tern__philox_words counter = tern__dropout_counter(a, first + (uint64_t)b);
        for (int w = 0; w < 4; w++) c[w][b / LANES][b % LANES] = counter.word[w];
    }
}

TERN__INLINE void all_rounds(uint64_t key, words c[4][GROUPS])
{
#pragma GCC unroll 10
    for (int r = 0; r < TERN__PHILOX_ROUNDS; r++) {
        uint64_t k0 = tern__philox_key0(key, r), k1 = tern__philox_key1(key, r);
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) {
            words even = c[0][g] * TERN__PHILOX_EVEN, odd = c[2][g] * TERN__PHILOX_ODD;
            c[0][g] = (odd >> 32) ^ c[1][g] ^ k0;
            c[2][g] = (even >> 32) ^ c[3][g] ^ k1;
            c[1][g] = odd & 0xffffffffu;
            c[3][g] = even & 0xffffffffu;
        }
    }
}

/* What the elements of a chunk are multiplied with. */
typedef union factors {
    float factor[CHUNK];
    uint32_t bits[CHUNK];
} factors;

/* The factors of the elements from block `first` on. A word below the threshold has a negative difference
 * from it, whose sign clears the scale's bits. */
TERN__INLINE void draw(const tern__dropout_attr *a, uint64_t first, factors *to)
{
    words c[4][GROUPS];
    uint64_t kept[4][BLOCKS];
    float scale = (float)a->scale;
    uint32_t scale_bits;
    memcpy(&scale_bits, &scale, sizeof(scale_bits));
    first_counter(a, first, c);
    all_rounds(a->key, c);
    for (int w = 0; w < 4; w++)
        for (int g = 0; g < GROUPS; g++) c[w][g] = scale_bits & (((c[w][g] - a->threshold) >> 63) - 1);
    memcpy(kept, c, sizeof(kept));
    for (int b = 0; b < BLOCKS; b++)
        for (int w = 0; w < 4; w++) to->bits[4 * b + w] = (uint32_t)kept[w][b];
}

/* Elements first to last - 1; first is a multiple of a chunk. y may be x. */
TERN__INLINE void drop_of(const tern__call *call, int64_t first, int64_t last, tern_dtype dtype)
{
    const void *x = call->in[0]->data;
    factors f;
    for (int64_t at = first; at < last; at += CHUNK) {
        int64_t n = TERN__MIN(CHUNK, last - at), whole = n / TERN__LANES * TERN__LANES;
        draw(call->attr, (uint64_t)at / 4, &f);
        for (int64_t i = 0; i < whole; i += TERN__LANES) {
            tern__lanes v = tern__lanes_get(x, dtype, at + i, TERN__LANES);
            v *= tern__lanes_load(f.factor + i, TERN__LANES);
            tern__lanes_set(call->out[0]->data, dtype, at + i, v, TERN__LANES, call->add[0]);
        }
        for (int64_t i = whole; i < n; i++) {
            tern__lanes v = tern__lanes_get(x, dtype, at + i, 1) * f.factor[i];
            tern__lanes_set(call->out[0]->data, dtype, at + i, v, 1, call->add[0]);
        }
    }
}

/* n elements times the scale, or 0 where `kept` is 0: a number for each, or with step 0 one for all. */
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
    factors f;
    for (int64_t at = first; at < last; at += CHUNK) {
        draw(call->attr, (uint64_t)at / 4, &f);
        multiply_f64(call, at, TERN__MIN(CHUNK, last - at), f.factor, 1);
    }
}

TERN__SIMD static void drop(const tern__call *call, int64_t first, int64_t last)
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

int tern__cpu_dropout(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    bool plain = tern__view_is_contiguous(x) && tern__view_is_contiguous(y);
    if (!plain || x->dtype != y->dtype) return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(x), chunks = (count + CHUNK - 1) / CHUNK;
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        drop(call, chunks * t / threads * CHUNK, TERN__MIN(count, chunks * (t + 1) / threads * CHUNK));
    return TERN_OK;
}

/* ---- whole channels ---- */

/* A plane has one channel, or 16 side by side in the blocked layout. */
typedef struct planes {
    const tern__call *call;
    const float *factor; /* of each channel of each sample */
    int64_t size;        /* elements of a plane            */
    int width;           /* channels of a plane            */
} planes;

TERN__SIMD static void draw_all(const tern__dropout_attr *a, int64_t chunks, factors *to)
{
    for (int64_t i = 0; i < chunks; i++) draw(a, (uint64_t)(i * BLOCKS), &to[i]);
}

/* Elements first to last - 1; in the blocked layout first is a multiple of 16. */
TERN__INLINE void scale_of(const planes *p, int64_t first, int64_t last, tern_dtype dtype)
{
    const void *x = p->call->in[0]->data;
    void *y = p->call->out[0]->data;
    bool add = p->call->add[0];
    while (first < last) {
        int64_t plane = first / p->size, end = TERN__MIN(last, (plane + 1) * p->size), i = first;
        tern__lanes factor = p->width == 1 ? (tern__lanes){0} + p->factor[plane]
                                           : tern__lanes_load(p->factor + plane * TERN__LANES, TERN__LANES);
        for (; i + TERN__LANES <= end; i += TERN__LANES)
            tern__lanes_set(y, dtype, i, tern__lanes_get(x, dtype, i, TERN__LANES) * factor, TERN__LANES,
                            add);
        int rest = (int)(end - i);
        if (rest) tern__lanes_set(y, dtype, i, tern__lanes_get(x, dtype, i, rest) * factor, rest, add);
        first = end;
    }
}

TERN__INLINE void scale_f64(const planes *p, int64_t first, int64_t last)
{
    for (int64_t end; first < last; first = end) {
        int64_t plane = first / p->size;
        end = TERN__MIN(last, (plane + 1) * p->size);
        multiply_f64(p->call, first, end - first, &p->factor[plane], 0);
    }
}

TERN__SIMD static void scale(const planes *p, int64_t first, int64_t last)
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

int tern__cpu_dropout_channels(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!tern__view_is_dense(x) || !tern__view_is_dense(y) || x->layout != y->layout ||
        x->dtype != y->dtype || (x->dtype == TERN_F64 && x->layout != TERN__PLAIN))
        return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(x), chunks = (x->shape[0] * x->shape[1] + CHUNK - 1) / CHUNK;
    factors *f = tern__loop_scratch(call, (size_t)TERN__MAX(chunks, 1) * sizeof(*f));
    if (!f) return TERN_E_MEMORY;
    draw_all(call->attr, chunks, f);
    planes p = {.call = call, .factor = f->factor, .width = x->layout == TERN__BLOCKED16 ? TERN__LANES : 1};
    p.size = tern__space_of(x).count * p.width;
    int threads = tern__loop_threads(call, count);
    int64_t rows = count / TERN__LANES;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        scale(&p, rows * t / threads * TERN__LANES,
              t + 1 < threads ? rows * (t + 1) / threads * TERN__LANES : count);
    return TERN_OK;
}
