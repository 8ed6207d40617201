/* topk.h - the attributes of TOPK. */
#ifndef TERN_SRC_KERNELS_TOPK_H
#define TERN_SRC_KERNELS_TOPK_H

#include "kernels/lines.h"

typedef struct tern__topk_attr {
    int64_t dim, k, largest; /* k elements of each line along `dim` */
} tern__topk_attr;

#endif
