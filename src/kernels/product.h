/* product.h - the matrix product in the form that libraries take.
 *
 * The product has three axes: m (of a and y), k (of a and b) and n (of b and y). A batch dimension is
 * merged into an axis that it continues in every operand: rows of a that all use the same b are just more
 * rows, and where y has stride 0 (the batch is summed) the sum becomes longer. Of the remaining
 * dimensions, those along which y moves are the batch; those with stride 0 in y are a loop of products
 * that add up. */
#ifndef TERN_SRC_KERNELS_PRODUCT_H
#define TERN_SRC_KERNELS_PRODUCT_H

#include "kernels/kernel.h"

/* The operands are a, b, y. */
#define TERN__PRODUCT_OPERANDS 3
#define TERN__PRODUCT_BATCH    (TERN_NDIM_MAX - 2)

/* The size, and the stride in each operand; 0 where the operand does not move. */
typedef struct tern__product_axis {
    int64_t size, stride[TERN__PRODUCT_OPERANDS];
} tern__product_axis;

typedef struct tern__product {
    const tern__view *view[TERN__PRODUCT_OPERANDS];
    tern__product_axis axis[3];                                              /* m, k, n */
    tern__product_axis batch[TERN__PRODUCT_BATCH], sum[TERN__PRODUCT_BATCH]; /* innermost first */
    int batches, sums;
    const tern__view *bias; /* (n), or NULL */
} tern__product;

/* How an operand's matrix is stored: by rows or, transposed, by columns, `step` elements apart. */
typedef struct tern__stand {
    bool transposed;
    int64_t step;
} tern__stand;

tern__product tern__product_of(const tern__call *call);

/* How many matrices the batch has. */
int64_t tern__product_count(const tern__product *product);

/* The axes of the rows and columns of an operand's matrix. */
const tern__product_axis *tern__product_rows(const tern__product *product, int operand);
const tern__product_axis *tern__product_columns(const tern__product *product, int operand);

/* False: neighbouring elements are not adjacent in memory, or y is transposed. */
bool tern__product_stand(const tern__product *product, int operand, tern__stand *stand);
bool tern__product_stands(const tern__product *product);

#endif
