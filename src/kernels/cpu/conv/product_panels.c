/* product_panels.c - panels of sums that stay in registers: 32 outputs by up to 14 positions with 32
 * registers of 16 floats (AVX-512), 32 by up to 3 or 16 by up to 6 with 16 registers of 8 (AVX2), 16 by up
 * to 6 with 32 of 4 (NEON). The panel's size is a compile-time constant.
 *
 * With AVX2 32 x 3 needs fewer loads than 16 x 6, 7 instead of 8 for 12 multiply-adds, and reads the inputs
 * half as often. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/conv/product_panels.h"
#include "kernels/cpu/lanes.h"

#define BLOCK TERN__BLOCK
#define LANES TERN__LANES
/* NARROW: positions of 16 outputs. INPUTS: most inputs of a gradient's panel of BACK outputs. */
#if TERN__LANES == 16
#define OUTPUTS   32
#define POSITIONS 14
#define NARROW    14
#define BACK      32
#define INPUTS    8
#elif TERN__LANES == 8
#define OUTPUTS   32
#define POSITIONS 3
#define NARROW    6
#define BACK      16
#define INPUTS    6
#else
#define OUTPUTS   16
#define POSITIONS 6
#define NARROW    6
#define BACK      16
#define INPUTS    6
#endif
#define VECTORS (OUTPUTS / LANES)

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* ---- sums over channels ---- */

static inline const float *next(const tern__conv_product *p, const float *in, int64_t *left)
{
    if (--*left) return in + p->in_pitch;
    *left = p->period;
    return in + p->in_pitch + p->skip;
}

/* Adds the products of an input to sum[i][v]; VALUE: that of position i. Weights or values stay in registers
 * meanwhile, whichever are fewer. */
#define ADD_INPUT(vectors, positions, VALUE)                                                                 \
    if ((positions) < (vectors)) {                                                                           \
        float value[NARROW];                                                                                 \
        EACH(i, positions) value[i] = (VALUE);                                                               \
        EACH(v, vectors)                                                                                     \
        {                                                                                                    \
            const tern__lanes weight = tern__lanes_load(w + v * LANES, LANES);                               \
            EACH(i, positions) sum[i][v] += weight * (value[i] - (tern__lanes){0});                          \
        }                                                                                                    \
    } else {                                                                                                 \
        tern__lanes weight[VECTORS];                                                                         \
        EACH(v, vectors) weight[v] = tern__lanes_load(w + v * LANES, LANES);                                 \
        EACH(i, positions)                                                                                   \
        {                                                                                                    \
            const tern__lanes value = (VALUE) - (tern__lanes){0};                                            \
            EACH(v, vectors) sum[i][v] += weight[v] * value;                                                 \
        }                                                                                                    \
    }

/* As many outputs from `out` on as `vectors` vectors hold. Where the sums go and the next panel's inputs are
 * fetched meanwhile: inputs come from many blocks, and a processor that has twice as many instructions for
 * them looks less far ahead. */
TERN__INLINE void sum_panel(const tern__conv_product *p, int64_t out, int vectors, const float *in, int step,
                            float *sums, int positions)
{
    const float *w = p->weight + out;
    const int64_t width = p->width, sum_pitch = p->sum_pitch, sum_step = p->sum_step;
    tern__lanes sum[NARROW][VECTORS] = {{{0}}};
    sums += out / BLOCK * sum_pitch;
    if (LANES < BLOCK)
        for (int o = 0; o < vectors * LANES; o += BLOCK)
            EACH(i, positions) __builtin_prefetch(sums + o / BLOCK * sum_pitch + i * sum_step, 1);
    for (int64_t b = 0, left = p->near; b < p->blocks; b++, in = next(p, in, &left)) {
        if (LANES < BLOCK) EACH(i, positions) __builtin_prefetch(in + (positions + i) * step);
        for (int c = 0; c < BLOCK; c++, w += width) ADD_INPUT(vectors, positions, in[i * step + c])
    }
    if (p->add) {
        EACH(i, positions)
        EACH(v, vectors)
        sum[i][v] +=
            tern__lanes_load(sums + v * LANES / BLOCK * sum_pitch + i * sum_step + v * LANES % BLOCK, LANES);
    }
    EACH(i, positions)
    EACH(v, vectors)
    tern__lanes_store(sums + v * LANES / BLOCK * sum_pitch + i * sum_step + v * LANES % BLOCK, sum[i][v],
                      LANES);
}

/* The most positions of a panel of so many vectors. */
TERN__INLINE int most_positions(int vectors)
{
    return vectors == TERN__PARTS ? NARROW : POSITIONS;
}

#define CASE(count)                                                                                          \
    case count:                                                                                              \
        if (count <= most_positions(vectors)) sum_panel(p, out, vectors, in, step, sums, count);             \
        break;

TERN__INLINE void sum_by_positions(const tern__conv_product *p, int64_t out, int vectors, const float *in,
                                   int step, float *sums, int64_t positions)
{
    switch (positions) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#if NARROW > 6
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
        CASE(13)
        CASE(14)
#endif
    }
}

TERN__INLINE void sum_by_step(const tern__conv_product *p, int64_t out, int vectors, const float *in,
                              float *sums, int64_t positions)
{
    if (p->in_step == BLOCK)
        sum_by_positions(p, out, vectors, in, BLOCK, sums, positions);
    else
        sum_by_positions(p, out, vectors, in, 2 * BLOCK, sums, positions);
}

TERN__SIMD static void panels_sum(const tern__conv_product *p, int64_t out, int64_t outputs, const float *in,
                                  float *sums, int64_t positions)
{
    if (OUTPUTS == BLOCK || outputs == OUTPUTS)
        sum_by_step(p, out, VECTORS, in, sums, positions);
    else
        sum_by_step(p, out, TERN__PARTS, in, sums, positions);
}

/* ---- sums over taps and channels ---- */

#ifdef TERN__SLIM

/* A panel whose positions each have a register for their address. */
TERN__INLINE void sum_places_panel(const tern__conv_places *p, int64_t out, int vectors,
                                   const float *const *in, float *const *sums, int places)
{
    const int64_t width = p->width;
    tern__lanes sum[NARROW][VECTORS] = {{{0}}};
    for (int64_t t = 0; t < p->taps; t++) {
        const float *w = p->weight + p->weight_of[t] + out, *at[NARROW];
        EACH(i, places) at[i] = in[i] + p->in_of[t];
        for (int64_t b = 0; b < p->blocks; b++) {
            for (int64_t c = 0; c < BLOCK; c++, w += width) ADD_INPUT(vectors, places, at[i][c])
            EACH(i, places) at[i] += p->in_pitch;
        }
    }
    EACH(i, places) EACH(v, vectors)
    {
        int o = v * LANES;
        if (p->bias) sum[i][v] += tern__lanes_load(p->bias + out + o, LANES);
        tern__lanes_put(sums[i] + o / BLOCK * p->sum_pitch + o % BLOCK, sum[i][v], LANES, p->add);
    }
}

#define PLACES_CASE(count)                                                                                   \
    case count:                                                                                              \
        if (count <= most_positions(vectors)) sum_places_panel(p, out, vectors, in, sums, count);            \
        break;

TERN__INLINE void sum_by_places(const tern__conv_places *p, int64_t out, int vectors, const float *const *in,
                                float *const *sums, int count)
{
    switch (count) {
        PLACES_CASE(1)
        PLACES_CASE(2)
        PLACES_CASE(3)
        PLACES_CASE(4)
        PLACES_CASE(5)
        PLACES_CASE(6)
    }
}

TERN__SIMD static void panels_sum_places(const tern__conv_places *p, int64_t out, int64_t outputs,
                                         const float *const *in, float *const *sums, int count)
{
    if (OUTPUTS == BLOCK || outputs == OUTPUTS)
        sum_by_places(p, out, VECTORS, in, sums, count);
    else
        sum_by_places(p, out, TERN__PARTS, in, sums, count);
}

#else
#define panels_sum_places NULL
#endif

/* ---- sums over positions ---- */

/* The gradients of `inputs` inputs from `c` on, all in one block. */
TERN__INLINE void sum_back_panel(const tern__conv_product *p, int64_t out, int vectors, int64_t c, int inputs,
                                 float *dw)
{
    const float *first_in = p->in + c / BLOCK * p->in_pitch + c % BLOCK;
    const float *first_dy = p->sums + out / BLOCK * p->sum_pitch;
    const int64_t columns = p->columns, in_step = p->in_step, sum_step = p->sum_step, width = p->width;
    const bool add = p->add;
    tern__lanes sum[INPUTS][VECTORS] = {{{0}}}, grad[VECTORS];
    for (int64_t n = 0; n < p->images; n++, first_in += p->in_image, first_dy += p->sum_image) {
        const float *in = first_in, *dy = first_dy;
        for (int64_t r = 0; r < p->rows; r++, in += p->in_row, dy += p->sum_row)
            for (int64_t t = 0; t < columns; t++) {
                EACH(v, vectors)
                {
                    int o = v * LANES;
                    grad[v] =
                        tern__lanes_load(dy + o / BLOCK * p->sum_pitch + t * sum_step + o % BLOCK, LANES);
                }
                EACH(i, inputs)
                {
                    tern__lanes value = in[t * in_step + i] - (tern__lanes){0};
                    EACH(v, vectors) sum[i][v] += grad[v] * value;
                }
            }
    }
    EACH(i, inputs)
    EACH(v, vectors) tern__lanes_put(dw + (c + i) * width + out + v * LANES, sum[i][v], LANES, add);
}

/* A block of inputs in panels of nearly equal size. */
TERN__INLINE void sum_back_block(const tern__conv_product *p, int64_t out, int vectors, int64_t c, float *dw)
{
#ifdef TERN__SLIM
    sum_back_panel(p, out, vectors, c, 6, dw);
    sum_back_panel(p, out, vectors, c + 6, 5, dw);
    sum_back_panel(p, out, vectors, c + 11, 5, dw);
#else
    for (int64_t i = 0; i < BLOCK; i += INPUTS) sum_back_panel(p, out, vectors, c + i, INPUTS, dw);
#endif
}

TERN__SIMD static void sum_back(const tern__conv_product *p, int64_t out, int64_t outputs, float *dw)
{
    for (int64_t c = 0; c < p->blocks * BLOCK; c += BLOCK)
        if (BACK == BLOCK || outputs == BACK)
            sum_back_block(p, out, BACK / LANES, c, dw);
        else
            sum_back_block(p, out, TERN__PARTS, c, dw);
}

const tern__product_panels TERN__OF_WIDTH(tern__product_panels) = {.outputs = OUTPUTS,
                                                                   .positions = POSITIONS,
                                                                   .narrow = NARROW,
                                                                   .back_outputs = BACK,
                                                                   .sum = panels_sum,
                                                                   .sum_places = panels_sum_places,
                                                                   .sum_back = sum_back};
