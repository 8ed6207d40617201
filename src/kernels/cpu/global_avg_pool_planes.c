/* global_avg_pool_planes.c - global average pooling plane by plane, sixteen elements at a time: those of a
 * position in the blocked layout, otherwise adjacent ones of one channel. */
#include "kernels/cpu/width.h"
#include "kernels/cpu/global_avg_pool_planes.h"
#include "kernels/cpu/lanes.h"

#define BLOCK TERN__BLOCK
#define LANES TERN__LANES
#define PARTS TERN__PARTS
#define RUN   64

typedef tern__avg_shape shape;

/* sum += `rows` rows of 16 elements, from element `from` on. */
TERN__INLINE void add_run(double sum[BLOCK], const tern__view *x, int64_t from, int64_t rows,
                          tern_dtype dtype)
{
    tern__lanes run[PARTS] = {0};
    for (int64_t r = 0; r < rows; r++, from += BLOCK)
        TERN__EACH_PART(p) run[p] += tern__lanes_get(x->data, dtype, from + p * LANES, LANES);
    float of_run[BLOCK];
    TERN__EACH_PART(p) tern__lanes_store(of_run + p * LANES, run[p], LANES);
    for (int l = 0; l < BLOCK; l++) sum[l] += (double)of_run[l];
}

/* Stores the means of 16 channels. */
TERN__INLINE void set_means(const tern__view *y, const double sum[BLOCK], int64_t i, const shape *s,
                            tern_dtype dtype)
{
    tern__lanes means[PARTS] = {0};
    for (int c = 0; c < BLOCK; c++) means[c / LANES][c % LANES] = (float)(sum[c] / (double)s->positions);
    TERN__EACH_PART(p) tern__lanes_set(y->data, dtype, i * BLOCK + p * LANES, means[p], LANES, false);
}

/* Stores the mean of one channel; its last `left` elements, from `at` on, are not in the sum yet. */
TERN__INLINE void set_mean(const tern__view *y, const double sum[BLOCK], const tern__view *x, int64_t at,
                           int left, int64_t i, const shape *s, tern_dtype dtype)
{
    double all = 0;
    TERN__EACH_PART(p)
    all += tern__lanes_sum(tern__lanes_get(x->data, dtype, at + p * LANES, tern__lanes_in(left, p)));
    for (int l = 0; l < BLOCK; l++) all += sum[l];
    tern__lanes mean = {(float)(all / (double)s->positions)};
    tern__lanes_set(y->data, dtype, i, mean, 1, false);
}

/* The means of plane i: of 16 channels, or of one whose positions are in the lanes. */
TERN__INLINE void mean_of(const tern__view *y, const tern__view *x, int64_t i, const shape *s,
                          tern_dtype dtype)
{
    int64_t rows = s->positions * s->width / BLOCK, from = i * s->width * s->positions;
    double sum[BLOCK] = {0};
    for (int64_t first = 0; first < rows; first += RUN)
        add_run(sum, x, from + first * BLOCK, TERN__MIN(rows - first, RUN), dtype);
    if (s->width == BLOCK)
        set_means(y, sum, i, s, dtype);
    else
        set_mean(y, sum, x, from + rows * BLOCK, (int)(s->positions - rows * BLOCK), i, s, dtype);
}

TERN__SIMD static void mean(const tern__view *y, const tern__view *x, int64_t i, const shape *s)
{
    if (x->dtype == TERN_F32)
        mean_of(y, x, i, s, TERN_F32);
    else if (x->dtype == TERN_BF16)
        mean_of(y, x, i, s, TERN_BF16);
    else
        mean_of(y, x, i, s, TERN_F16);
}

/* Repeats v, sixteen elements, over `count` elements from `at` on. If the caller does not add, they are
 * rounded once. */
TERN__INLINE void plane_fill(const tern__view *dx, const tern__lanes v[PARTS], int64_t at, int64_t count,
                             tern_dtype dtype, bool add)
{
    int64_t last = at + count / BLOCK * BLOCK;
    int left = (int)(count % BLOCK);
    for (; at < last; at += BLOCK)
        TERN__EACH_PART(p) tern__lanes_set(dx->data, dtype, at + p * LANES, v[p], LANES, add);
    if (left == 0) return;
    TERN__EACH_PART(p) tern__lanes_set(dx->data, dtype, at + p * LANES, v[p], tern__lanes_in(left, p), add);
}

TERN__INLINE void spread_of(const tern__view *dx, const tern__view *dy, int64_t i, const shape *s, bool add,
                            tern_dtype dtype)
{
    bool one = s->width == 1;
    tern__lanes v[PARTS];
    TERN__EACH_PART(p)
    {
        v[p] = tern__lanes_get(dy->data, dtype, i * s->width + (one ? 0 : p * LANES), one ? 1 : LANES);
        if (one) v[p] = (tern__lanes){0} + v[p][0];
        v[p] /= (float)s->positions;
    }
    int64_t count = s->positions * s->width;
    if (add)
        plane_fill(dx, v, i * count, count, dtype, true);
    else
        plane_fill(dx, v, i * count, count, dtype, false);
}

TERN__SIMD static void spread(const tern__view *dx, const tern__view *dy, int64_t i, const shape *s, bool add)
{
    if (dx->dtype == TERN_F32)
        spread_of(dx, dy, i, s, add, TERN_F32);
    else if (dx->dtype == TERN_BF16)
        spread_of(dx, dy, i, s, add, TERN_BF16);
    else
        spread_of(dx, dy, i, s, add, TERN_F16);
}

const tern__avg_fns TERN__OF_WIDTH(tern__avg) = {.mean = mean, .spread = spread};
