/* pool_windows.h - pooling windows of 16 interleaved planes. */
#ifndef TERN_SRC_KERNELS_CPU_POOL_WINDOWS_H
#define TERN_SRC_KERNELS_CPU_POOL_WINDOWS_H

#include "kernels/cpu/widths.h"
#include "kernels/pool.h"

/* A range of slices and rows, with all their columns. */
typedef struct tern__pool_box {
    int64_t slice, slices, row, rows;
} tern__pool_box;

/* What is the same for all planes. */
typedef struct tern__pool_shape {
    const tern__pool_attr *attr;
    tern__space in, out;
    const tern__pool_span *spans[TERN__SPACE]; /* of each slice, row and column of y */
} tern__pool_shape;

/* 16 interleaved planes: the part of x in a box, and the part of y computed from it; in a gradient their
 * gradients. The places of maxima may be NULL if not wanted. */
typedef struct tern__pool_block {
    float *x, *y;
    uint8_t *place;
    tern__pool_box in, out;
} tern__pool_block;

/* Processes all windows of a block; the gradients add to x. */
typedef void (*tern__pool_fn)(const tern__pool_shape *s, const tern__pool_block *b);

typedef struct tern__pool_fns {
    tern__pool_fn max, max_grad, avg, avg_grad;
} tern__pool_fns;

TERN__DECLARE_WIDTHS(tern__pool_fns, tern__pool);

#endif
