/* sums.h - sums and other reductions over the threads of a warp and of a block.
 *
 * The order depends only on the number of threads, and every thread gets the same result. A large
 * reduction has two kernels: the first writes a value for each piece, the second joins the pieces. The
 * number of pieces depends only on the size, so no result depends on the device. */
#ifndef TERN_SRC_CUDA_KERNELS_SUMS_H
#define TERN_SRC_CUDA_KERNELS_SUMS_H

#include "cuda/runtime.h"

#define TERN__WARP     32
#define TERN__ALL      0xffffffffu /* lanes of a warp */
#define TERN__SUM_MOST 512         /* most pieces */

/* ---- joining two values ---- */

struct tern__add {
    template <class T> static __device__ __forceinline__ T of(T a, T b)
    {
        return a + b;
    }
};
/* A NaN stays. */
struct tern__high {
    template <class T> static __device__ __forceinline__ T of(T a, T b)
    {
        return b > a || b != b ? b : a;
    }
};
struct tern__low {
    template <class T> static __device__ __forceinline__ T of(T a, T b)
    {
        return b < a || b != b ? b : a;
    }
};

/* ---- joining threads' values ---- */

static __device__ __forceinline__ int tern__thread_number(void)
{
    return (int)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}

/* Joins the values of `lanes` neighbouring threads, a power of two. The whole warp must call it. */
template <class J, class T> __device__ __forceinline__ T tern__warp_join(T value, int lanes = TERN__WARP)
{
    for (int step = lanes / 2; step > 0; step /= 2)
        value = J::of(value, (T)__shfl_xor_sync(TERN__ALL, value, step));
    return value;
}

template <class T> __device__ __forceinline__ T tern__warp_sum(T value)
{
    return tern__warp_join<tern__add>(value);
}

/* Joins N values each over a block of whole warps. `none` is the neutral element. */
template <class J, int N, class T> __device__ __forceinline__ void tern__block_joins(T (&value)[N], T none)
{
    __shared__ T of_warps[N][TERN__WARP];
    int thread = tern__thread_number(), lane = thread % TERN__WARP;
    int warps = (int)(blockDim.x * blockDim.y * blockDim.z) / TERN__WARP;
    for (int i = 0; i < N; i++) value[i] = tern__warp_join<J>(value[i]);
    __syncthreads(); /* all have read an earlier call's values */
    for (int i = 0; i < N && lane == 0; i++) of_warps[i][thread / TERN__WARP] = value[i];
    __syncthreads();
    for (int i = 0; i < N; i++) value[i] = tern__warp_join<J>(lane < warps ? of_warps[i][lane] : none);
}

template <class J, class T> __device__ __forceinline__ T tern__block_join(T value, T none)
{
    T values[1] = {value};
    tern__block_joins<J, 1, T>(values, none);
    return values[0];
}

template <class T> __device__ __forceinline__ T tern__block_sum(T value)
{
    return tern__block_join<tern__add>(value, T(0));
}

template <int N, class T> __device__ __forceinline__ void tern__block_sums(T (&value)[N])
{
    tern__block_joins<tern__add, N, T>(value, T(0));
}

/* ---- pieces ---- */

/* The number of pieces for a reduction of `count` elements, with at least `least` elements each. */
static inline int tern__sum_pieces(int64_t count, int64_t least, int64_t most = TERN__SUM_MOST)
{
    int64_t pieces = (count + least - 1) / least;
    return (int)TERN__MAX((int64_t)1, TERN__MIN(pieces, most));
}

/* Called by a warp: joins partial[0], partial[step], .. of all pieces. */
template <class J, class T>
__device__ __forceinline__ T tern__pieces_join(const T *partial, int pieces, int64_t step, T none)
{
    T value = none;
    for (int i = tern__thread_number() % TERN__WARP; i < pieces; i += TERN__WARP)
        value = J::of(value, partial[i * step]);
    return tern__warp_join<J>(value);
}

#endif
