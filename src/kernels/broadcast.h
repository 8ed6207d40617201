/* broadcast.h - the attributes of the kernels on broadcast views. */
#ifndef TERN_SRC_KERNELS_BROADCAST_H
#define TERN_SRC_KERNELS_BROADCAST_H

/* SCALE and SUM. */
typedef struct tern__factor_attr {
    double factor;
} tern__factor_attr;

#endif
