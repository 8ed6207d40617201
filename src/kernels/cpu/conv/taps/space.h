/* space.h - the outputs for which a tap reads the image. Along an axis they are a range, and the distance
 * to the inputs read is constant. So in a sheet (a two-dimensional image is one sheet) both are rectangles
 * of the same size. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TAPS_SPACE_H
#define TERN_SRC_KERNELS_CPU_CONV_TAPS_SPACE_H

#include "kernels/conv.h"
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/lanes.h"

/* For output i tap k reads input i + shift + k * step. With a stride: output i reads input i * in_stride +
 * shift + k * step; turned, output i * out_stride - shift - k * step reads input i. */
typedef struct tern__taps_axis {
    int64_t in, out, taps;
    int64_t shift, step;
    int64_t in_stride, out_stride; /* one of the two is 1 */
} tern__taps_axis;

enum { TERN__TAPS_SHEETS, TERN__TAPS_ROWS, TERN__TAPS_COLUMNS, TERN__TAPS_AXES };

typedef struct tern__taps_space {
    tern__taps_axis axis[TERN__TAPS_AXES];
} tern__taps_space;

/* Rows begin .. end - 1 of a sheet of outputs. */
typedef struct tern__taps_band {
    int64_t sheet, begin, end;
} tern__taps_band;

typedef struct tern__taps_range {
    int64_t first, count; /* outputs           */
    int64_t in;           /* the input of the first output */
} tern__taps_range;

/* turned: for a data gradient, whose outputs are x's. */
static inline tern__taps_space tern__taps_space_of(const tern__conv_attr *a, const tern__view *in,
                                                   const tern__view *out, const tern__view *w, bool turned)
{
    tern__taps_space s = {.axis = {{.in = 1, .out = 1, .taps = 1, .in_stride = 1, .out_stride = 1}}};
    int64_t sign = turned ? -1 : 1;
    for (int axis = TERN__TAPS_AXES + 2 - in->ndim, d = 2; axis < TERN__TAPS_AXES; axis++, d++)
        s.axis[axis] = (tern__taps_axis){.in = in->shape[d],
                                         .out = out->shape[d],
                                         .taps = w->shape[d],
                                         .shift = -sign * a->padding[axis],
                                         .step = sign * a->dilation[axis],
                                         .in_stride = turned ? 1 : a->stride[axis],
                                         .out_stride = turned ? a->stride[axis] : 1};
    return s;
}

/* The range of places in first .. last - 1 for which place * stride + shift is in begin .. end - 1. */
static inline tern__taps_range tern__taps_pairs(int64_t first, int64_t last, int64_t stride, int64_t shift,
                                                int64_t begin, int64_t end)
{
    first = TERN__MAX(first, (TERN__MAX(0, begin - shift) + stride - 1) / stride);
    last = TERN__MIN(last, (TERN__MAX(0, end - shift) + stride - 1) / stride);
    return (tern__taps_range){first, TERN__MAX(0, last - first), first * stride + shift};
}

/* The range among the outputs begin .. end - 1. */
static inline tern__taps_range tern__taps_see(const tern__taps_axis *a, int64_t tap, int64_t begin,
                                              int64_t end)
{
    int64_t shift = a->shift + tap * a->step;
    if (a->out_stride == 1) return tern__taps_pairs(begin, end, a->in_stride, shift, 0, a->in);
    tern__taps_range in = tern__taps_pairs(0, a->in, a->out_stride, -shift, begin, end);
    return (tern__taps_range){.first = in.in, .count = in.count, .in = in.first};
}

/* The address of a block of an image's channels. */
static inline float *tern__taps_block(const tern__view *view, int64_t image, int64_t block)
{
    int64_t floats = TERN__BLOCK;
    for (int d = 2; d < view->ndim; d++) floats *= view->shape[d];
    return (float *)view->data + (image * (view->shape[1] / TERN__BLOCK) + block) * floats;
}

static inline int64_t tern__taps_count(const tern__taps_space *s)
{
    return s->axis[0].taps * s->axis[1].taps * s->axis[2].taps;
}

/* The tap's product on its rectangle in a band of outputs, with in and sums at the first block; no rows if
 * it only reads padding. */
static inline tern__conv_product tern__taps_product(const tern__taps_space *s, int64_t tap,
                                                    const tern__taps_band *band, const float *in, float *sums)
{
    const tern__taps_axis *z = &s->axis[TERN__TAPS_SHEETS], *y = &s->axis[TERN__TAPS_ROWS];
    const tern__taps_axis *x = &s->axis[TERN__TAPS_COLUMNS];
    tern__taps_range sheet = tern__taps_see(z, tap / (y->taps * x->taps), band->sheet, band->sheet + 1);
    tern__taps_range rows = tern__taps_see(y, tap / x->taps % y->taps, band->begin, band->end);
    tern__taps_range columns = tern__taps_see(x, tap % x->taps, 0, x->out);
    int64_t first_in = (sheet.in * y->in + rows.in) * x->in + columns.in;
    int64_t first_out = (sheet.first * y->out + rows.first) * x->out + columns.first;
    return (tern__conv_product){.in = in + first_in * TERN__BLOCK,
                                .sums = sums + first_out * TERN__BLOCK,
                                .rows = sheet.count && columns.count ? rows.count : 0,
                                .columns = columns.count,
                                .in_pitch = z->in * y->in * x->in * TERN__BLOCK,
                                .in_row = y->in_stride * x->in * TERN__BLOCK,
                                .in_step = x->in_stride * TERN__BLOCK,
                                .sum_pitch = z->out * y->out * x->out * TERN__BLOCK,
                                .sum_row = y->out_stride * x->out * TERN__BLOCK,
                                .sum_step = x->out_stride * TERN__BLOCK,
                                .add = true};
}

#endif
