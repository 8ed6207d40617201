/* cluster.h - clusters: blocks that run at the same time and can read each other's shared memory, on GPUs
 * of compute capability 9.0 and later. tern__cuda_launch_clusters launches them. */
#ifndef TERN_SRC_CUDA_KERNELS_CLUSTER_H
#define TERN_SRC_CUDA_KERNELS_CLUSTER_H

#include "cuda/runtime.h"

#define TERN__CLUSTER_MOST 8 /* blocks; every GPU with clusters can run so many */

/* A barrier of the cluster's threads in two halves: what was written before all threads arrived is visible
 * after waiting. All threads call both halves, and no block ends while others read its memory. */
static __device__ __forceinline__ void tern__cluster_arrive(void)
{
#if defined(TERN_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive();
#endif
}
static __device__ __forceinline__ void tern__cluster_wait(void)
{
#if defined(TERN_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    __cluster_barrier_wait();
#endif
}

/* The address in another block's shared memory that corresponds to `data` in this one's. */
template <class T> static __device__ __forceinline__ const T *tern__cluster_at(const T *data, int block)
{
#if defined(TERN_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    return (const T *)__cluster_map_shared_rank(data, (unsigned)block);
#else
    return data;
#endif
}

#endif
