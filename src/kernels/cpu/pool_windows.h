/* pool_windows.h - the windows of 16 planes, which lie side by side. */
#ifndef TERN_SRC_KERNELS_CPU_POOL_WINDOWS_H
#define TERN_SRC_KERNELS_CPU_POOL_WINDOWS_H

#include "kernels/cpu/widths.h"
#include "kernels/pool.h"

/* Slices and rows, with all their columns. */
typedef struct tern__pool_box {
    int64_t slice, slices, row, rows;
} tern__pool_box;

/* What is the same in all planes. */
typedef struct tern__pool_shape {
    const tern__pool_attr *attr;
    tern__space in, out;
    const tern__pool_span *spans[TERN__SPACE]; /* of each slice, row and column of y */
} tern__pool_shape;

/* 16 planes side by side: of x what is in a box, and what is computed of y. In a gradient of both their
 * gradients; the places of maxima may be NULL where they are not wanted. */
typedef struct tern__pool_block {
    float *x, *y;
    uint8_t *place;
    tern__pool_box in, out;
} tern__pool_block;

/* Does all windows of a block; the gradients add to x. */
typedef void (*tern__pool_fn)(const tern__pool_shape *s, const tern__pool_block *b);

typedef struct tern__pool_fns {
    tern__pool_fn max, max_grad, avg, avg_grad;
} tern__pool_fns;

TERN__DECLARE_WIDTHS(tern__pool_fns, tern__pool);

#endif
