/* unscale.h - attributes of the UNSCALE kernel. */
#ifndef TERN_SRC_KERNELS_UNSCALE_H
#define TERN_SRC_KERNELS_UNSCALE_H

/* Inputs whose numbers are in device memory: another factor, and a flag that makes g zero unless it is 0. */
#define TERN__UNSCALE_FACTOR 1
#define TERN__UNSCALE_DROP   2

typedef struct tern__unscale_attr {
    double factor;
} tern__unscale_attr;

#endif
