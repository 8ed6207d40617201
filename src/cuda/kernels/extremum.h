/* extremum.h - finds the first of a line's largest or smallest elements with a group of threads; a NaN
 * counts as either. */
#ifndef TERN_SRC_CUDA_KERNELS_EXTREMUM_H
#define TERN_SRC_CUDA_KERNELS_EXTREMUM_H

#include "cuda/kernels/lines.h"

template <class R> struct tern__extremum {
    R value;
    int64_t place; /* -1: no element */
};

/* Whether b wins over a. */
template <class R>
__device__ __forceinline__ bool tern__extremum_beats(const tern__extremum<R> &b, const tern__extremum<R> &a,
                                                     bool least)
{
    if (b.place < 0 || a.place < 0) return a.place < 0 && b.place >= 0;
    if (a.value != a.value || b.value != b.value)
        return b.value != b.value && (a.value == a.value || b.place < a.place);
    if (a.value == b.value) return b.place < a.place;
    return least ? b.value < a.value : b.value > a.value;
}

template <class R>
__device__ __forceinline__ tern__extremum<R> tern__warp_extremum(tern__extremum<R> best, bool least)
{
    for (int step = TERN__WARP / 2; step > 0; step /= 2) {
        tern__extremum<R> other;
        other.value = __shfl_xor_sync(TERN__ALL, best.value, step);
        other.place = __shfl_xor_sync(TERN__ALL, best.place, step);
        if (tern__extremum_beats(other, best, least)) best = other;
    }
    return best;
}

template <class R>
__device__ __forceinline__ tern__extremum<R> tern__block_extremum(tern__extremum<R> best, bool least)
{
    __shared__ tern__extremum<R> of_warps[TERN__WARP];
    int lane = threadIdx.x % TERN__WARP, warps = (int)blockDim.x / TERN__WARP;
    best = tern__warp_extremum(best, least);
    __syncthreads();
    if (lane == 0) of_warps[threadIdx.x / TERN__WARP] = best;
    __syncthreads();
    best = of_warps[lane < warps ? lane : 0];
    return tern__warp_extremum(best, least);
}

/* The extremum of `size` elements from `from` on. */
template <int G, class R>
__device__ __forceinline__ tern__extremum<R> tern__group_extremum(const tern__lined &x, int64_t from,
                                                                  int64_t size, bool least)
{
    tern__extremum<R> best = {R(0), -1};
    for (int64_t i = threadIdx.x % G; i < size; i += G) {
        tern__extremum<R> here = {tern__lined_get<R>(x, from + i * x.step), i};
        if (tern__extremum_beats(here, best, least)) best = here;
    }
    if constexpr (G == TERN__WARP) best = tern__warp_extremum(best, least);
    if constexpr (G > TERN__WARP) best = tern__block_extremum(best, least);
    return best;
}

#endif
