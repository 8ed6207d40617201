/* few_rows.h - the sums of a matrix product of a few rows (few_rows.c). */
#ifndef TERN_SRC_KERNELS_CPU_FEW_ROWS_H
#define TERN_SRC_KERNELS_CPU_FEW_ROWS_H

#include "kernels/cpu/widths.h"
#include "kernels/kernel.h"

/* At most so many rows. More of f32 take a product less time, and more of 16 bits f32 copies of b. */
static inline int64_t tern__few_rows_most(tern_dtype dtype)
{
    return dtype == TERN_F32 ? 1 : tern__dtype_is_half(dtype) ? 4 : 0;
}

typedef struct tern__few_rows {
    const float *a; /* (rows, depth) */
    const void *b;
    tern_dtype dtype; /* of b: f32, bf16, f16 */
    int64_t line;     /* elements from one line of b to the next */
    int64_t rows, depth, columns;
} tern__few_rows;

/* A part of the sums: of a range of columns, over a range of the depth. */
typedef struct tern__few_rows_part {
    int64_t column[2], k[2];
    float *sums; /* (rows, columns) */
} tern__few_rows_part;

typedef struct tern__few_rows_fns {
    /* A column of b is a line; k is all of the depth. */
    void (*by_columns)(const tern__few_rows *p, const tern__few_rows_part *part);
    /* A row is. */
    void (*by_rows)(const tern__few_rows *p, const tern__few_rows_part *part);
} tern__few_rows_fns;

TERN__DECLARE_WIDTHS(tern__few_rows_fns, tern__few_rows_sums);

#endif
