/* plane.h - which outputs see the image through a tap. Along an axis they are a range, and their inputs are
 * as far from them for all of it, so on the plane both are rectangles of the same size. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TAPS_PLANE_H
#define TERN_SRC_KERNELS_CPU_CONV_TAPS_PLANE_H

#include "kernels/conv.h"
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/lanes.h"

/* Through tap k output i sees input i + shift + k * step. */
typedef struct tern__taps_axis {
    int64_t in, out, taps;
    int64_t shift, step;
} tern__taps_axis;

/* Rows and columns. */
typedef struct tern__taps_plane {
    tern__taps_axis axis[2];
} tern__taps_plane;

typedef struct tern__taps_range {
    int64_t first, count; /* outputs           */
    int64_t in;           /* the first's input */
} tern__taps_range;

/* turned: of a data gradient, whose outputs are x's. */
static inline tern__taps_plane tern__taps_plane_of(const tern__conv_attr *a, const tern__view *in,
                                                   const tern__view *out, const tern__view *w, bool turned)
{
    tern__taps_plane p;
    int64_t sign = turned ? -1 : 1;
    for (int d = 0; d < 2; d++)
        p.axis[d] = (tern__taps_axis){.in = in->shape[2 + d],
                                      .out = out->shape[2 + d],
                                      .taps = w->shape[2 + d],
                                      .shift = -sign * a->padding[1 + d],
                                      .step = sign * a->dilation[1 + d]};
    return p;
}

/* Of the outputs from `begin` to `end` - 1. */
static inline tern__taps_range tern__taps_see(const tern__taps_axis *a, int64_t tap, int64_t begin,
                                              int64_t end)
{
    int64_t shift = a->shift + tap * a->step;
    int64_t first = TERN__MAX(begin, -shift), last = TERN__MIN(end, a->in - shift);
    return (tern__taps_range){first, TERN__MAX(0, last - first), first + shift};
}

/* A block of an image's channels. */
static inline float *tern__taps_block(const tern__view *view, int64_t image, int64_t block)
{
    const int64_t *shape = view->shape;
    return (float *)view->data +
           (image * (shape[1] / TERN__LANES) + block) * shape[2] * shape[3] * TERN__LANES;
}

static inline int64_t tern__taps_count(const tern__taps_plane *p)
{
    return p->axis[0].taps * p->axis[1].taps;
}

/* The tap's rectangle in rows `begin` to `end` - 1 of the outputs, where in and sums are the first block's
 * planes; with no rows or no columns where it sees nothing. */
static inline tern__conv_product tern__taps_product(const tern__taps_plane *p, int64_t tap, int64_t begin,
                                                    int64_t end, const float *in, float *sums)
{
    const tern__taps_axis *y = &p->axis[0], *x = &p->axis[1];
    tern__taps_range rows = tern__taps_see(y, tap / x->taps, begin, end);
    tern__taps_range columns = tern__taps_see(x, tap % x->taps, 0, x->out);
    return (tern__conv_product){.in = in + (rows.in * x->in + columns.in) * TERN__LANES,
                                .sums = sums + (rows.first * x->out + columns.first) * TERN__LANES,
                                .rows = columns.count ? rows.count : 0,
                                .columns = columns.count,
                                .in_pitch = y->in * x->in * TERN__LANES,
                                .in_row = x->in * TERN__LANES,
                                .sum_pitch = y->out * x->out * TERN__LANES,
                                .sum_row = x->out * TERN__LANES,
                                .add = true};
}

#endif
