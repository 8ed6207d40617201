/* channel_strips.h - what loops over a strip of a tile (tiles.h) share, in a file of width.h: a row of
 * TERN__BLOCK lanes is TERN__PARTS vectors; in a narrower strip the last ones are shorter or empty. */
#ifndef TERN_SRC_KERNELS_CPU_CHANNEL_STRIPS_H
#define TERN_SRC_KERNELS_CPU_CHANNEL_STRIPS_H

#include "kernels/cpu/tiles.h"

#define ROWS 64 /* rows that are summed in f32 at most, the rest in double */
/* Independent sums, so that none waits for its own last addition; for all parts together as many as
 * registers hold. */
#define CHAINS (4 / TERN__PARTS)

/* Calls `name`, which is inlined, with 16 lanes and the dtype as constants, or else with the values at
 * hand. */
#define EACH_KIND(name, s, dtype, ...)                                                                       \
    do {                                                                                                     \
        if ((s)->lanes != TERN__BLOCK)                                                                       \
            name(__VA_ARGS__, (s)->lanes, dtype);                                                            \
        else if (dtype == TERN_F32)                                                                          \
            name(__VA_ARGS__, TERN__BLOCK, TERN_F32);                                                        \
        else if (dtype == TERN_BF16)                                                                         \
            name(__VA_ARGS__, TERN__BLOCK, TERN_BF16);                                                       \
        else                                                                                                 \
            name(__VA_ARGS__, TERN__BLOCK, TERN_F16);                                                        \
    } while (0)

/* Loads part p of the row at element `at`. */
TERN__INLINE tern__lanes get_part(const void *from, tern_dtype dtype, int64_t at, int lanes, int p)
{
    return tern__lanes_get(from, dtype, at + p * TERN__LANES, tern__lanes_in(lanes, p));
}

TERN__INLINE void set_part(void *to, tern_dtype dtype, int64_t at, tern__lanes v, int lanes, int p, bool add)
{
    tern__lanes_set(to, dtype, at + p * TERN__LANES, v, tern__lanes_in(lanes, p), add);
}

/* Each channel's value in the lanes that belong to it; 0 in lanes that the strip does not have. */
TERN__INLINE tern__lanes spread(const float *values, const tern__tile *t, int lanes, int p)
{
    int n = tern__lanes_in(lanes, p);
    if (t->channels == lanes) return tern__lanes_load(values + t->channel + p * TERN__LANES, n);
    tern__lanes v = {0};
    for (int l = 0; l < n; l++) v[l] = values[t->channel];
    return v;
}

/* Adds the chains pairwise. */
TERN__INLINE void add_lanes(double to[TERN__BLOCK], tern__lanes from[CHAINS][TERN__PARTS])
{
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
#pragma GCC unroll 4
        for (int half = CHAINS / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
            for (int i = 0; i < half; i++) from[i][p] = from[2 * i][p] + from[2 * i + 1][p];
        }
        for (int l = 0; l < TERN__LANES; l++) to[p * TERN__LANES + l] += (double)from[0][p][l];
    }
}

/* Batch norm's y before the residual and the ReLU; backward recomputes it. */
TERN__INLINE tern__lanes affine_of(tern__lanes x, tern__lanes mean, tern__lanes scale, tern__lanes bias)
{
    return (x - mean) * scale + bias;
}

#endif
