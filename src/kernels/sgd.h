/* sgd.h - attributes of the SGD kernel. */
#ifndef TERN_SRC_KERNELS_SGD_H
#define TERN_SRC_KERNELS_SGD_H

typedef struct tern__sgd_attr {
    double lr, momentum, weight_decay, nesterov; /* nesterov: 0 or 1 */
} tern__sgd_attr;

#endif
