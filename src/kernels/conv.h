/* conv.h - the attributes of a convolution. */
#ifndef TERN_SRC_KERNELS_CONV_H
#define TERN_SRC_KERNELS_CONV_H

#include <stdint.h>

/* Depth, height and width. Operands without a depth use the last two, and the first are 1, 0 and 1. */
typedef struct tern__conv_attr {
    int64_t stride[3], padding[3], dilation[3], groups;
} tern__conv_attr;

#endif
