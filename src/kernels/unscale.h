/* unscale.h - attributes of the UNSCALE kernel. */
#ifndef TERN_SRC_KERNELS_UNSCALE_H
#define TERN_SRC_KERNELS_UNSCALE_H

typedef struct tern__unscale_attr {
    double factor;
} tern__unscale_attr;

#endif
