/* unscale.h - attributes of the UNSCALE kernel. */
#ifndef TERN_SRC_KERNELS_UNSCALE_H
#define TERN_SRC_KERNELS_UNSCALE_H

/* Numbers that are in a device's memory are inputs: another factor, and one that makes zeros of g unless it
 * is 0. */
#define TERN__UNSCALE_FACTOR 1
#define TERN__UNSCALE_DROP   2

typedef struct tern__unscale_attr {
    double factor;
} tern__unscale_attr;

#endif
