/* pool.h - the attributes of a 2-d pooling and its windows. */
#ifndef TERN_SRC_KERNELS_POOL_H
#define TERN_SRC_KERNELS_POOL_H

#include "base/base.h"

/* Height and width. */
typedef struct tern__pool_attr {
    int64_t kernel[2], stride[2], padding[2];
    int64_t count_pad; /* average: not 0 if the padding counts as zeros */
} tern__pool_attr;

/* The part of output (row, col)'s window that lies inside the input: rows and columns first to last - 1, and
 * what an average divides by. A place in the window is row * kernel width + column, counted from the whole
 * window's corner. */
typedef struct tern__window {
    int64_t first[2], last[2], corner[2], divisor;
} tern__window;

static inline tern__window tern__window_of(const tern__pool_attr *p, const int64_t input[2], int64_t row,
                                           int64_t col)
{
    tern__window w = {.corner = {row * p->stride[0] - p->padding[0], col * p->stride[1] - p->padding[1]}};
    for (int d = 0; d < 2; d++) {
        w.first[d] = TERN__MAX(w.corner[d], 0);
        w.last[d] = TERN__MIN(w.corner[d] + p->kernel[d], input[d]);
    }
    w.divisor =
        p->count_pad ? p->kernel[0] * p->kernel[1] : (w.last[0] - w.first[0]) * (w.last[1] - w.first[1]);
    return w;
}

#endif
