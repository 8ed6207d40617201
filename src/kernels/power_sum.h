/* power_sum.h - attributes of the POWER_SUM kernel. */
#ifndef TERN_SRC_KERNELS_POWER_SUM_H
#define TERN_SRC_KERNELS_POWER_SUM_H

typedef struct tern__power_attr {
    double p; /* > 0, or INFINITY */
} tern__power_attr;

#endif
