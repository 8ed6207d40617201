/* group_norm.h - attributes and shape of the group norm kernels, which also do layer norm, instance norm and
 * root mean square norm.
 *
 * x is contiguous and seen as (N, G, K, S). Each row (n, g) of K S values is normalised on its own, then
 * scaled and shifted by element g K + k of weight and bias (G K). Layer norm over the last dimensions is
 * (rows, 1, K, 1), group norm is (N, G, C / G, positions). A row's mean and 1 / deviation are f64 whatever x
 * is, as batch norm's statistics are. */
#ifndef TERN_SRC_KERNELS_GROUP_NORM_H
#define TERN_SRC_KERNELS_GROUP_NORM_H

#include "tensor/view.h"

typedef struct tern__group_norm_attr {
    double eps;
    int64_t rms; /* root mean square norm: the mean counts as 0. It is absent, as are bias and db; S is 1 */
} tern__group_norm_attr;

typedef struct tern__group_shape {
    int64_t samples, groups, channels, positions; /* N, G, K, S */
    int64_t size;                                 /* elements of a row */
} tern__group_shape;

static inline tern__group_shape tern__group_shape_of(const tern__view *x)
{
    return (tern__group_shape){x->shape[0], x->shape[1], x->shape[2], x->shape[3], x->shape[2] * x->shape[3]};
}

#endif
