/* bunches.h - neighbours of one dtype that are read and written at once, 16 bytes at most, where their dtype
 * is known when the kernel is compiled. */
#ifndef TERN_SRC_CUDA_BUNCHES_H
#define TERN_SRC_CUDA_BUNCHES_H

#include "cuda/elements.h"

#ifndef TERN_CUDA_EMULATED
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

/* What elements are in memory, and what they are computed in. */
template <int DTYPE> struct tern__as {
    typedef uint16_t memory;
    typedef float number;
};
template <> struct tern__as<TERN_F32> {
    typedef float memory, number;
};
template <> struct tern__as<TERN_F64> {
    typedef double memory, number;
};

template <int DTYPE> using tern__stored = typename tern__as<DTYPE>::memory;
template <int DTYPE> using tern__number = typename tern__as<DTYPE>::number;

/* GPUs have instructions for 16 bits. */
template <int DTYPE> __device__ __forceinline__ tern__number<DTYPE> tern__widened(tern__stored<DTYPE> value)
{
#ifndef TERN_CUDA_EMULATED
    if constexpr (DTYPE == TERN_F16) return __half2float(__ushort_as_half(value));
#endif
    return tern__element<tern__number<DTYPE>>(&value, DTYPE, 0);
}

template <int DTYPE> __device__ __forceinline__ tern__stored<DTYPE> tern__narrowed(tern__number<DTYPE> value)
{
#ifndef TERN_CUDA_EMULATED
    if constexpr (DTYPE == TERN_F16) return __half_as_ushort(__float2half_rn(value));
    if constexpr (DTYPE == TERN_BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#endif
    tern__stored<DTYPE> narrow;
    tern__element_set<tern__number<DTYPE>>(&narrow, DTYPE, 0, value);
    return narrow;
}

template <int DTYPE, int N> struct alignas(N * sizeof(tern__stored<DTYPE>)) tern__bunch {
    tern__stored<DTYPE> v[N];

    __device__ __forceinline__ tern__number<DTYPE> get(int i) const
    {
        return tern__widened<DTYPE>(v[i]);
    }
    __device__ __forceinline__ void set(int i, tern__number<DTYPE> value)
    {
        v[i] = tern__narrowed<DTYPE>(value);
    }
};

/* Two of 16 bits to a register: who keeps several bunches would need twice the registers for single ones. */
template <int DTYPE> struct alignas(16) tern__bunch_of_pairs {
    uint32_t pair[4];

    __device__ __forceinline__ float get(int i) const
    {
        return tern__widened<DTYPE>((uint16_t)(pair[i / 2] >> i % 2 * 16));
    }
    __device__ __forceinline__ void set(int i, float value)
    {
        uint32_t bits = tern__narrowed<DTYPE>(value);
        pair[i / 2] = i % 2 ? (pair[i / 2] & 0xffff) | bits << 16 : (pair[i / 2] & 0xffff0000) | bits;
    }
};
template <> struct tern__bunch<TERN_BF16, 8> : tern__bunch_of_pairs<TERN_BF16> {
};
template <> struct tern__bunch<TERN_F16, 8> : tern__bunch_of_pairs<TERN_F16> {
};

/* Element `at` and those after it; it is a multiple of N, as the address is of the bunch's size. */
template <int DTYPE, int N>
__device__ __forceinline__ tern__bunch<DTYPE, N> tern__bunch_get(const void *data, int64_t at)
{
    return *(const tern__bunch<DTYPE, N> *)((const tern__stored<DTYPE> *)data + at);
}

template <int DTYPE, int N>
__device__ __forceinline__ void tern__bunch_put(void *data, int64_t at, tern__bunch<DTYPE, N> bunch, bool add)
{
    tern__bunch<DTYPE, N> *to = (tern__bunch<DTYPE, N> *)((tern__stored<DTYPE> *)data + at);
    if (add) {
        tern__bunch<DTYPE, N> old = *to;
#pragma unroll
        for (int i = 0; i < N; i++) bunch.set(i, old.get(i) + bunch.get(i));
    }
    *to = bunch;
}

/* Divisions of 64 bits are slow. */
static __device__ __forceinline__ int64_t tern__quotient(int64_t a, int64_t b)
{
    return ((uint64_t)a | (uint64_t)b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

/* Elements in 16 bytes. */
static inline int tern__bunch_most(int dtype)
{
    return 16 / (int)tern_dtype_bytes((tern_dtype)dtype);
}

/* Whether `count` neighbours at a time can be taken as bunches: of all views, where one is. */
static inline bool tern__bunches_fit(const tern__view *const *views, int count, int64_t neighbours)
{
    bool fit = true;
    for (int i = 0; i < count; i++)
        fit &= !views[i] ||
               ((uintptr_t)views[i]->data % 16 == 0 && neighbours % tern__bunch_most(views[i]->dtype) == 0);
    return fit;
}

/* Returns START<DTYPE, N>(..) of a dtype in floating point, N as many as fit into 16 bytes or 1. */
#define TERN__BUNCHED(dtype, whole, START, ...)                                                              \
    switch ((int)(dtype)) {                                                                                  \
    case TERN_F32: return (whole) ? START<TERN_F32, 4>(__VA_ARGS__) : START<TERN_F32, 1>(__VA_ARGS__);       \
    case TERN_F64: return (whole) ? START<TERN_F64, 2>(__VA_ARGS__) : START<TERN_F64, 1>(__VA_ARGS__);       \
    case TERN_BF16: return (whole) ? START<TERN_BF16, 8>(__VA_ARGS__) : START<TERN_BF16, 1>(__VA_ARGS__);    \
    case TERN_F16: return (whole) ? START<TERN_F16, 8>(__VA_ARGS__) : START<TERN_F16, 1>(__VA_ARGS__);       \
    default: return TERN_E_UNSUPPORTED;                                                                      \
    }

#endif
