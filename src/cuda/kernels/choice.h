/* choice.h - the first of a line's largest or smallest elements, by a group of threads; a NaN is both. */
#ifndef TERN_SRC_CUDA_KERNELS_CHOICE_H
#define TERN_SRC_CUDA_KERNELS_CHOICE_H

#include "cuda/kernels/lines.h"

template <class R> struct tern__choice {
    R value;
    int64_t place; /* -1: of nothing */
};

/* Does b go before a? */
template <class R>
__device__ __forceinline__ bool tern__choice_beats(const tern__choice<R> &b, const tern__choice<R> &a,
                                                   bool least)
{
    if (b.place < 0 || a.place < 0) return a.place < 0 && b.place >= 0;
    if (a.value != a.value || b.value != b.value)
        return b.value != b.value && (a.value == a.value || b.place < a.place);
    if (a.value == b.value) return b.place < a.place;
    return least ? b.value < a.value : b.value > a.value;
}

template <class R>
__device__ __forceinline__ tern__choice<R> tern__warp_choice(tern__choice<R> best, bool least)
{
    for (int step = TERN__WARP / 2; step > 0; step /= 2) {
        tern__choice<R> other;
        other.value = __shfl_xor_sync(TERN__ALL, best.value, step);
        other.place = __shfl_xor_sync(TERN__ALL, best.place, step);
        if (tern__choice_beats(other, best, least)) best = other;
    }
    return best;
}

template <class R>
__device__ __forceinline__ tern__choice<R> tern__block_choice(tern__choice<R> best, bool least)
{
    __shared__ tern__choice<R> of_warps[TERN__WARP];
    int lane = threadIdx.x % TERN__WARP, warps = (int)blockDim.x / TERN__WARP;
    best = tern__warp_choice(best, least);
    __syncthreads();
    if (lane == 0) of_warps[threadIdx.x / TERN__WARP] = best;
    __syncthreads();
    best = of_warps[lane < warps ? lane : 0];
    return tern__warp_choice(best, least);
}

/* Of `size` elements that begin at `from`. */
template <int G, class R>
__device__ __forceinline__ tern__choice<R> tern__group_choice(const tern__lined &x, int64_t from,
                                                              int64_t size, bool least)
{
    tern__choice<R> best = {R(0), -1};
    for (int64_t i = threadIdx.x % G; i < size; i += G) {
        tern__choice<R> here = {tern__lined_get<R>(x, from + i * x.step), i};
        if (tern__choice_beats(here, best, least)) best = here;
    }
    if constexpr (G == TERN__WARP) best = tern__warp_choice(best, least);
    if constexpr (G > TERN__WARP) best = tern__block_choice(best, least);
    return best;
}

#endif
