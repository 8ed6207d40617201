/* matrix.h - an operand of our own matrix products. */
#ifndef TERN_SRC_KERNELS_CPU_MATRIX_H
#define TERN_SRC_KERNELS_CPU_MATRIX_H

#include "kernels/kernel.h"

/* A matrix with contiguous rows or columns: one of the strides is 1. */
typedef struct tern__matrix {
    char *data;
    int64_t rows, columns, row_stride, column_stride;
} tern__matrix;

/* y = or += a b [+ bias], with the call's ReLU; y's rows are contiguous. */
typedef int tern__matrix_product(const tern__call *call, const tern__matrix *a, const tern__matrix *b,
                                 const tern__matrix *y, bool add);

#endif
