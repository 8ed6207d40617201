/* interpolate.h - the attributes of an interpolation, and what of x an element of y is made of. */
#ifndef TERN_SRC_KERNELS_INTERPOLATE_H
#define TERN_SRC_KERNELS_INTERPOLATE_H

#include "base/host_device.h"
#include "kernels/space.h"

#include <math.h>

typedef struct tern__interpolate_attr {
    int64_t mode;              /* tern__interpolation                                          */
    int64_t align_corners;     /* not 0: yes                                                   */
    double scale[TERN__SPACE]; /* of each axis, as the caller gave it; 0: the sizes' ratio */
} tern__interpolate_attr;

typedef enum tern__interpolation { TERN__NEAREST, TERN__LINEAR, TERN__MEAN } tern__interpolation;

/* Along one axis: `count` neighbours of x from `first` on. The first of them counts with weight[0], the
 * others with weight[1]. */
typedef struct tern__taps {
    int64_t first, count;
    double weight[2];
} tern__taps;

/* How far apart two neighbours in y are in x. */
TERN__ANYWHERE double tern__interpolate_step(const tern__interpolate_attr *a, int axis, int64_t in,
                                             int64_t out)
{
    if (a->align_corners) return out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    return a->scale[axis] > 0 ? 1 / a->scale[axis] : (double)in / (double)out;
}

/* Elements are cells of width 1 and their values stand in the middle, but with align_corners the first and
 * the last ones of x and y fall together. */
TERN__ANYWHERE tern__taps tern__linear_taps(const tern__interpolate_attr *a, int axis, int64_t in,
                                            int64_t out, int64_t i)
{
    double step = tern__interpolate_step(a, axis, in, out);
    double at = a->align_corners ? step * (double)i : step * ((double)i + 0.5) - 0.5;
    if (in == out) at = (double)i;
    if (at < 0) at = 0;
    int64_t first = TERN__MIN((int64_t)at, in - 1);
    double part = first == in - 1 ? 0 : TERN__MIN(at - (double)first, 1.0);
    return (tern__taps){first, part > 0 ? 2 : 1, {1 - part, part}};
}

/* The cell in which y's cell begins. PyTorch computes that in f32 but for `f64` tensors, and rounding can
 * decide which cell it is. */
TERN__ANYWHERE tern__taps tern__nearest_taps(const tern__interpolate_attr *a, int axis, int64_t in,
                                             int64_t out, int64_t i, bool f64)
{
    double step = tern__interpolate_step(a, axis, in, out);
    float at = f64 ? (float)(step * (double)i) : (float)step * (float)i;
    return (tern__taps){TERN__MIN((int64_t)floorf(at), in - 1), 1, {1, 0}};
}

/* The mean of all cells that y's cell touches: PyTorch's adaptive pooling. */
TERN__ANYWHERE tern__taps tern__mean_taps(int64_t in, int64_t out, int64_t i)
{
    int64_t first = i * in / out, last = ((i + 1) * in + out - 1) / out;
    double share = 1 / (double)(last - first);
    return (tern__taps){first, last - first, {share, share}};
}

TERN__ANYWHERE tern__taps tern__taps_of(const tern__interpolate_attr *a, int axis, int64_t in, int64_t out,
                                        int64_t i, bool f64)
{
    if (a->mode == TERN__MEAN) return tern__mean_taps(in, out, i);
    if (a->mode == TERN__LINEAR) return tern__linear_taps(a, axis, in, out, i);
    return tern__nearest_taps(a, axis, in, out, i, f64);
}

#endif
