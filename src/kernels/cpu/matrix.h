/* matrix.h - what the products that are not oneDNN's are told of an operand. */
#ifndef TERN_SRC_KERNELS_CPU_MATRIX_H
#define TERN_SRC_KERNELS_CPU_MATRIX_H

#include "kernels/kernel.h"

/* A matrix whose rows or whose columns stand without gaps: one of the strides is 1. */
typedef struct tern__matrix {
    char *data;
    int64_t rows, columns, row_stride, column_stride;
} tern__matrix;

/* y = or += a b [+ bias], with the call's ReLU; y has rows without gaps. */
typedef int tern__matrix_product(const tern__call *call, const tern__matrix *a, const tern__matrix *b,
                                 const tern__matrix *y, bool add);

#endif
