/* cumsum.h - the attributes of CUMSUM. */
#ifndef TERN_SRC_KERNELS_CUMSUM_H
#define TERN_SRC_KERNELS_CUMSUM_H

#include "kernels/lines.h"

typedef struct tern__cumsum_attr {
    int64_t dim, back; /* back: the sums of an element and those after it, as in the gradient */
} tern__cumsum_attr;

#endif
