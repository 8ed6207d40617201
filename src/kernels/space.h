/* space.h - (N, C, ..) with 1 to 3 spatial dimensions, seen as depth, height and width; missing ones have
 * size 1. */
#ifndef TERN_SRC_KERNELS_SPACE_H
#define TERN_SRC_KERNELS_SPACE_H

#include "tensor/view.h"

#define TERN__SPACE 3

typedef struct tern__space {
    int64_t size[TERN__SPACE];
    int64_t count; /* product of the sizes */
} tern__space;

static inline tern__space tern__space_of(const tern__view *x)
{
    tern__space s = {{1, 1, 1}, 1};
    for (int d = 2; d < x->ndim; d++) {
        s.size[TERN__SPACE - x->ndim + d] = x->shape[d];
        s.count *= x->shape[d];
    }
    return s;
}

#endif
