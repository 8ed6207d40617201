/* pool.h - the attributes of a pooling over three axes and its windows. */
#ifndef TERN_SRC_KERNELS_POOL_H
#define TERN_SRC_KERNELS_POOL_H

#include "base/host_device.h"
#include "kernels/space.h"

/* Depth, height and width; without a depth the first are 1, 1, 0 and 1. */
typedef struct tern__pool_attr {
    int64_t kernel[TERN__SPACE], stride[TERN__SPACE], padding[TERN__SPACE], dilation[TERN__SPACE];
    int64_t count_pad; /* average: not 0 if the padding counts as zeros */
} tern__pool_attr;

/* What an element of y sees of x along one axis: kernel place k lies at corner + k * dilation, and those from
 * `first` to `last` - 1 lie inside x (perhaps none, with dilation). An average divides by the product of all
 * divisors. The place of a maximum is its number among all places of the kernel, row-major. */
typedef struct tern__pool_span {
    int64_t corner, first, last, divisor;
} tern__pool_span;

/* As many steps as cover a length: the usual one needs no division. */
TERN__ANYWHERE int64_t tern__pool_steps(int64_t length, int64_t step)
{
    return step == 1 ? length : (length + step - 1) / step;
}

TERN__ANYWHERE tern__pool_span tern__span_of(const tern__pool_attr *p, int axis, int64_t input, int64_t out)
{
    int64_t kernel = p->kernel[axis], dilation = p->dilation[axis], padding = p->padding[axis];
    tern__pool_span s;
    s.corner = out * p->stride[axis] - padding;
    s.first = s.corner < 0 ? tern__pool_steps(-s.corner, dilation) : 0;
    s.last = TERN__MIN(kernel, tern__pool_steps(input - s.corner, dilation));
    s.divisor = p->count_pad ? TERN__MIN(s.corner + kernel, input + padding) - s.corner : s.last - s.first;
    return s;
}

/* Places of a window. */
TERN__ANYWHERE int64_t tern__pool_places(const tern__pool_attr *p)
{
    return p->kernel[0] * p->kernel[1] * p->kernel[2];
}

TERN__ANYWHERE int64_t tern__pool_place(const tern__pool_attr *p, int64_t d, int64_t r, int64_t c)
{
    return (d * p->kernel[1] + r) * p->kernel[2] + c;
}

#endif
