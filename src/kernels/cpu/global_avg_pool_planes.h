/* global_avg_pool_planes.h - the mean of a plane, and spreading a value over a plane. */
#ifndef TERN_SRC_KERNELS_CPU_GLOBAL_AVG_POOL_PLANES_H
#define TERN_SRC_KERNELS_CPU_GLOBAL_AVG_POOL_PLANES_H

#include "kernels/cpu/widths.h"
#include "tensor/view.h"

/* A plane: the positions of one channel, or of a block of 16 in the blocked layout. */
typedef struct tern__avg_shape {
    int64_t planes, positions;
    int width; /* channels of a plane */
    int threads;
} tern__avg_shape;

/* Stores the means of plane i of x in y; f32, bf16 or f16. */
typedef void (*tern__avg_mean_fn)(const tern__view *y, const tern__view *x, int64_t i,
                                  const tern__avg_shape *s);
/* Stores or adds plane i's share of dy at all positions of dx. */
typedef void (*tern__avg_spread_fn)(const tern__view *dx, const tern__view *dy, int64_t i,
                                    const tern__avg_shape *s, bool add);

typedef struct tern__avg_fns {
    tern__avg_mean_fn mean;
    tern__avg_spread_fn spread;
} tern__avg_fns;

TERN__DECLARE_WIDTHS(tern__avg_fns, tern__avg);

#endif
