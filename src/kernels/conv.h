/* conv.h - the attributes of a convolution. */
#ifndef TERN_SRC_KERNELS_CONV_H
#define TERN_SRC_KERNELS_CONV_H

#include <stdint.h>

/* Height and width. */
typedef struct tern__conv_attr {
    int64_t stride[2], padding[2], dilation[2], groups;
} tern__conv_attr;

#endif
