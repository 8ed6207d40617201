/* matrix.h - our own products of matrices, and their operands. */
#ifndef TERN_SRC_KERNELS_CPU_MATRIX_H
#define TERN_SRC_KERNELS_CPU_MATRIX_H

#include "kernels/kernel.h"
#include "kernels/product.h"

/* A matrix with contiguous rows or columns: one of the strides is 1. */
typedef struct tern__matrix {
    char *data;
    int64_t rows, columns, row_stride, column_stride;
} tern__matrix;

/* Matrix `n` of a product's batch; `data`: the operand's first element. */
tern__matrix tern__matrix_of(const tern__product *product, int operand, char *data, int64_t n);

/* y = or += a b [+ bias], with the call's ReLU; y's rows are contiguous. */
typedef int tern__matrix_product(const tern__call *call, const tern__matrix *a, const tern__matrix *b,
                                 const tern__matrix *y, bool add);

tern__matrix_product tern__f64_matmul; /* f64, which oneDNN does not have */
tern__matrix_product tern__amx_matmul; /* bf16, by the tile unit; y is bf16 or f32 */
/* Up to tern__few_rows_most rows of f32, bf16 or f16; y is of that type or f32. */
tern__matrix_product tern__few_rows_matmul;

/* The same for all matrices of the batch, in f32 or also in bf16; `at`: the first elements of a, b and y. */
typedef int tern__products(const tern__call *call, const tern__product *product, char *const at[], bool add);

tern__products tern__f32_matmul;    /* for CPUs without AVX-512 */
tern__products tern__dnnl_multiply; /* without the ReLU; y in bf16 or f32 if a and b are bf16 */

#endif
