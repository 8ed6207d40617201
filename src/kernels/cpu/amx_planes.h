/* amx_planes.h - how the rows (or columns) of a convolution's source become those of planes in which every
 * tap of the kernel is a shift; amx_conv.c tells why. */
#ifndef TERN_SRC_KERNELS_CPU_AMX_PLANES_H
#define TERN_SRC_KERNELS_CPU_AMX_PLANES_H

#include "kernels/conv.h"
#include "tensor/view.h"

/* The source is x, the target y; in a data gradient the other way round. */
typedef struct tern__axis {
    bool gradient;
    int64_t stride, dilation, padding;
    int64_t source, target; /* rows                                                          */
    int64_t step, turns;    /* phases, turns: one of them is the stride, the other one is 1 */
    int64_t margin, size;   /* row of the plane where source row 0 would be (times step); rows of a plane */
} tern__axis;

static inline tern__axis tern__axis_of(const tern__conv_attr *attr, int d, const tern__view *x,
                                       const tern__view *y, int64_t kernel, bool gradient)
{
    int64_t in = x->shape[2 + d], out = y->shape[2 + d], stride = attr->stride[1 + d];
    int64_t reach = (kernel - 1) * attr->dilation[1 + d], padding = attr->padding[1 + d];
    tern__axis a = {gradient, stride,  attr->dilation[1 + d], padding, in, out, stride,
                    1,        padding, out + reach / stride};
    if (gradient) {
        a.source = out;
        a.target = in;
        a.step = 1;
        a.turns = stride;
        a.margin = TERN__MAX(0, (reach - padding + stride - 1) / stride);
        a.size = 0;
        for (int64_t t = 0; t < stride; t++) {
            int64_t positions = (in - t + stride - 1) / stride;
            a.size = TERN__MAX(a.size, a.margin + (t + padding) / stride + positions);
        }
    }
    a.size += d * (a.size % 2); /* pairs of positions begin with each row */
    return a;
}

/* The source's row that is row i of a phase's plane; -1: padding. */
static inline int64_t tern__axis_source(const tern__axis *a, int64_t phase, int64_t i)
{
    int64_t at = i * a->step + phase - a->margin;
    return at < a->source ? at : -1;
}

/* Where kernel place k sees the source from the first position of a turn; false: nowhere. */
static inline bool tern__axis_tap(const tern__axis *a, int64_t turn, int64_t k, int64_t *phase,
                                  int64_t *shift)
{
    int64_t at = k * a->dilation;
    if (a->gradient) at = turn + a->padding + a->margin * a->stride - at;
    *phase = a->gradient ? 0 : at % a->step;
    *shift = at / a->stride;
    return !a->gradient || at % a->stride == 0;
}

/* Position j of a turn is row turn + j * turns of the target: how many there are. */
static inline int64_t tern__axis_positions(const tern__axis *a, int64_t turn)
{
    return turn < a->target ? (a->target - turn + a->turns - 1) / a->turns : 0;
}

#endif
