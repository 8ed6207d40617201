/* reduce.h - the attributes of the kernels that reduce over broadcast dimensions of their output. */
#ifndef TERN_SRC_KERNELS_REDUCE_H
#define TERN_SRC_KERNELS_REDUCE_H

#include "tensor/view.h"

/* SUM: the factor of every sum. */
typedef struct tern__factor_attr {
    double factor;
} tern__factor_attr;

/* The number of distinct elements of y, the output seen with the input's shape: the product of the
 * dimensions that are not broadcast. They are contiguous. */
static inline int64_t tern__own_count(const tern__view *y)
{
    int64_t count = 1;
    for (int d = 0; d < y->ndim; d++) count *= y->stride[d] ? y->shape[d] : 1;
    return count;
}

#endif
