/* batch_norm_strips.c - batch norm's forward loops, compiled for each vector width. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/batch_norm_strips.h"
#include "kernels/cpu/channel_strips.h"

/* ---- statistics ---- */

#define HEAD 16 /* rows whose mean is the shift */

/* The mean is summed up as the distances from the first value: that of equal values is the value itself. */
TERN__INLINE void shift_of(const void *x, const tern__tile *t, float shift[TERN__BLOCK], int lanes,
                           tern_dtype dtype)
{
    const tern__strip *s = &t->strips[0];
    int64_t rows = TERN__MIN(s->rows, HEAD);
    tern__lanes first[TERN__PARTS], sum[TERN__PARTS] = {{0}};
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) first[p] = get_part(x, dtype, s->at, lanes, p);
    float value = first[0][0];
    bool same = t->channels == 1; /* all lanes are one channel's */
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS && same; p++)
        for (int l = 0; l < tern__lanes_in(lanes, p); l++) first[p][l] = value;
    for (int64_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < TERN__PARTS; p++)
            sum[p] += get_part(x, dtype, s->at + r * s->stride, lanes, p) - first[p];
    double all = 0;
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
        tern__lanes_store(shift + p * TERN__LANES, first[p] + sum[p] / (float)rows, TERN__LANES);
        if (same) all += tern__lanes_sum(sum[p]);
    }
    float mean = value + (float)(all / (double)(rows * lanes));
    for (int l = 0; l < TERN__BLOCK && same; l++) shift[l] = mean;
}

TERN__SIMD static void shift_by(const tern__view *x, const tern__tile *t, float shift[TERN__BLOCK])
{
    EACH_KIND(shift_of, &t->strips[0], x->dtype, x->data, t, shift);
}

/* Adds a row: a and b += d and d * d. */
TERN__INLINE void add_row(const void *x, int64_t at, const tern__lanes shift[TERN__PARTS],
                          tern__lanes a[TERN__PARTS], tern__lanes b[TERN__PARTS], int lanes, tern_dtype dtype)
{
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
        tern__lanes d = get_part(x, dtype, at, lanes, p) - shift[p];
        a[p] += d;
        b[p] += d * d;
    }
}

TERN__INLINE void moments_of(const void *x, const tern__strip *s, const float *from, double sum[TERN__BLOCK],
                             double square[TERN__BLOCK], int lanes, tern_dtype dtype)
{
    tern__lanes shift[TERN__PARTS];
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) shift[p] = get_part(from, TERN_F32, 0, lanes, p);
    for (int64_t first = 0; first < s->rows; first += ROWS) {
        int64_t last = TERN__MIN(s->rows, first + ROWS), r = first;
        tern__lanes a[CHAINS][TERN__PARTS] = {0}, b[CHAINS][TERN__PARTS] = {0};
        for (; r + CHAINS <= last; r += CHAINS) {
#pragma GCC unroll 4
            for (int i = 0; i < CHAINS; i++)
                add_row(x, s->at + (r + i) * s->stride, shift, a[i], b[i], lanes, dtype);
        }
        for (; r < last; r++) add_row(x, s->at + r * s->stride, shift, a[0], b[0], lanes, dtype);
        add_lanes(sum, a);
        add_lanes(square, b);
    }
}

TERN__SIMD static void batch_norm_moments(const tern__view *x, const tern__strip *s,
                                          const float shift[TERN__BLOCK], double sum[TERN__BLOCK],
                                          double square[TERN__BLOCK])
{
    EACH_KIND(moments_of, s, x->dtype, x->data, s, shift, sum, square);
}

TERN__SIMD static void moments_f64(const tern__view *x, const tern__strip *s, const double shift[TERN__BLOCK],
                                   double sum[TERN__BLOCK], double square[TERN__BLOCK])
{
    for (int64_t r = 0; r < s->rows; r++)
        for (int p = 0; p < TERN__PARTS; p++) {
            tern__lanes v = get_part(x->data, x->dtype, s->at + r * s->stride, s->lanes, p);
            for (int l = 0; l < tern__lanes_in(s->lanes, p); l++) {
                double d = (double)v[l] - shift[p * TERN__LANES + l];
                sum[p * TERN__LANES + l] += d;
                square[p * TERN__LANES + l] += d * d;
            }
        }
}

/* ---- y = act((x - centre) * scale + shift + residual) ---- */

TERN__INLINE void apply_to(const norm_maps *maps, const tern__tile *t, const tern__strip *s, int lanes,
                           tern_dtype dtype)
{
    const void *x = maps->x->data, *residual = maps->residual ? maps->residual->data : NULL;
    void *y = maps->y->data;
    bool relu = maps->relu;
    tern__lanes centre[TERN__PARTS], scale[TERN__PARTS], shift[TERN__PARTS];
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) {
        centre[p] = spread(maps->centre, t, lanes, p);
        scale[p] = spread(maps->scale, t, lanes, p);
        shift[p] = spread(maps->shift, t, lanes, p);
    }
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->at + r * s->stride;
#pragma GCC unroll 4
        for (int p = 0; p < TERN__PARTS; p++) {
            tern__lanes v = affine_of(get_part(x, dtype, at, lanes, p), centre[p], scale[p], shift[p]);
            if (residual) v += get_part(residual, dtype, at, lanes, p);
            if (relu) v = tern__lanes_relu(v);
            set_part(y, dtype, at, v, lanes, p, false);
        }
    }
}

TERN__SIMD static void batch_norm_apply(const norm_maps *maps, const tern__tile *t, const tern__strip *s)
{
    EACH_KIND(apply_to, s, maps->x->dtype, maps, t, s);
}

const tern__batch_norm_fns TERN__OF_WIDTH(tern__batch_norm_strips) = {
    .shift = shift_by, .moments = batch_norm_moments, .moments_f64 = moments_f64, .apply = batch_norm_apply};
