/* small_gemm.h - matrix products in f32 that are too small to keep a GPU busy, where launches and memory
 * latency dominate: up to two products in one launch. */
#ifndef TERN_SRC_CUDA_KERNELS_SMALL_GEMM_H
#define TERN_SRC_CUDA_KERNELS_SMALL_GEMM_H

#include "cuda/cublas/gemm.h"

#define TERN__SMALL_GEMMS  2
#define TERN__SMALL_BLOCKS 256

/* Whether these products can be computed in one launch. */
bool tern__small_gemms_fit(const tern__gemm *g, int count);

/* Computes them, in any order: they must not depend on each other. With a `gate`, which is stored like
 * every a, a counts as 0 where the gate is <= 0. A ReLU keeps NaN. Products of few tiles are cut into
 * parts for about `blocks` blocks, TERN__SMALL_BLOCKS at most; the rounding of sums depends on that. */
int tern__small_gemms(const tern__call *call, const tern__gemm *g, int count, const float *gate, int blocks);

/* Another implementation of `call`. */
typedef int tern__other_way(const tern__call *call, const void *ctx);

/* The same, or `other(call, ctx)`: whichever was measured to be faster, here or by others or according to
 * the file (device/choices.h). `other` also if the products do not fit or measuring is not allowed. */
int tern__small_gemms_or(const tern__call *call, const tern__gemm *g, int count, const float *gate,
                         tern__other_way *other, const void *ctx);

#endif
