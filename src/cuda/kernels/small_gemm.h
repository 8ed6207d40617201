/* small_gemm.h - products of f32 for matrices that are too small to keep a GPU busy, where starting kernels
 * and waiting for memory is what costs: up to two products in one launch. */
#ifndef TERN_SRC_CUDA_KERNELS_SMALL_GEMM_H
#define TERN_SRC_CUDA_KERNELS_SMALL_GEMM_H

#include "cuda/cublas/gemm.h"
#include "cuda/stopwatch.h"

#define TERN__SMALL_GEMMS  2
#define TERN__SMALL_BLOCKS 256

/* Whether these can be made in one launch. */
bool tern__small_gemms_fit(const tern__gemm *g, int count);

/* Makes them, in any order: they do not need each other's results. With a `gate`, which stands in memory as
 * every a does, a counts as 0 where the gate is <= 0. A ReLU keeps NaN. A product of fewer tiles is cut into
 * parts for about `blocks` blocks, of TERN__SMALL_BLOCKS at most: how sums are rounded depends on that. */
int tern__small_gemms(const tern__call *call, const tern__gemm *g, int count, const float *gate, int blocks);

/* Another way to do what `call` asks for. */
typedef int tern__other_way(const tern__call *call, const void *ctx);

/* The same, or `other(call, ctx)`: the faster by the device's clock, or by what
 * others have told or the file has (device/notes.h); `other` where they do not fit or clocks may not decide.
 */
int tern__small_gemms_or(const tern__call *call, const tern__gemm *g, int count, const float *gate,
                         tern__other_way *other, const void *ctx);

#endif
