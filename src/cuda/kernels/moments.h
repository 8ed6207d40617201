/* moments.h - statistics of each channel of (N, C, ..), in batch_norm.cu. */
#ifndef TERN_SRC_CUDA_KERNELS_MOMENTS_H
#define TERN_SRC_CUDA_KERNELS_MOMENTS_H

#include "cuda/kernels/columns.h"

/* Where the mean and the biased variance go. Running ones move towards them by `momentum`. */
typedef struct tern__moments {
    tern__vector mean, var, inverse; /* inverse: 1 / sqrt(var + eps) */
    tern__vector running_mean, running_var;
    double eps, momentum;
} tern__moments;

/* x is contiguous and not empty. */
int tern__cuda_moments(const tern__call *call, const tern__view *x, const tern__moments *to);

#endif
