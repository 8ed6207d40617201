/* product.h - the matrix product as libraries take it.
 *
 * The product has three axes: m (of a and y), k (of a and b) and n (of b and y). Each dimension of the batch
 * becomes a part of one of them where it continues that axis in every operand: rows of a that all meet one b
 * are more rows, and where y stands still (the batch is summed) the sum is longer. Of what is left, the
 * dimensions along which y moves are the batch; those along which it stands still are a loop of products that
 * add up. */
#ifndef TERN_SRC_KERNELS_PRODUCT_H
#define TERN_SRC_KERNELS_PRODUCT_H

#include "kernels/kernel.h"

/* The operands are a, b, y. */
#define TERN__PRODUCT_OPERANDS 3
#define TERN__PRODUCT_BATCH    (TERN_NDIM_MAX - 2)

/* How many, and how far apart they are in each operand: 0 in one that does not move. */
typedef struct tern__product_axis {
    int64_t size, stride[TERN__PRODUCT_OPERANDS];
} tern__product_axis;

typedef struct tern__product {
    const tern__view *view[TERN__PRODUCT_OPERANDS];
    tern__product_axis axis[3];                                              /* m, k, n */
    tern__product_axis batch[TERN__PRODUCT_BATCH], sum[TERN__PRODUCT_BATCH]; /* the innermost first */
    int batches, sums;
    const tern__view *bias; /* (n), or NULL */
} tern__product;

/* How the matrix of an operand stands: by rows or, transposed, by columns, each `step` behind the last. */
typedef struct tern__stand {
    bool transposed;
    int64_t step;
} tern__stand;

tern__product tern__product_of(const tern__call *call);

/* The axes of the rows and columns of an operand's matrix. */
const tern__product_axis *tern__product_rows(const tern__product *product, int operand);
const tern__product_axis *tern__product_columns(const tern__product *product, int operand);

/* False: neighbours of its matrix are apart, or y's is transposed. */
bool tern__product_stand(const tern__product *product, int operand, tern__stand *stand);
bool tern__product_stands(const tern__product *product);

#endif
