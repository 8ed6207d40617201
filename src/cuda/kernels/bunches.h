/* bunches.h - bunches: neighbouring elements that are read and written at once, 16 bytes at most, with a
 * dtype known at compile time. */
#ifndef TERN_SRC_CUDA_KERNELS_BUNCHES_H
#define TERN_SRC_CUDA_KERNELS_BUNCHES_H

#include "cuda/kernels/elements.h"

/* The type of elements in memory, and the type for computing. */
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

template <int DTYPE> __device__ __forceinline__ tern__number<DTYPE> tern__widened(tern__stored<DTYPE> value)
{
    return tern__element<tern__number<DTYPE>>(&value, DTYPE, 0);
}

template <int DTYPE> __device__ __forceinline__ tern__stored<DTYPE> tern__narrowed(tern__number<DTYPE> value)
{
    tern__stored<DTYPE> narrow;
    tern__element_set<tern__number<DTYPE>>(&narrow, DTYPE, 0, value);
    return narrow;
}

/* Two per register, the first in the low half. */
template <int DTYPE> __device__ __forceinline__ uint32_t tern__narrowed_pair(float low, float high)
{
#ifndef TERN_CUDA_EMULATED
    if constexpr (DTYPE == TERN_BF16) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *(uint32_t *)&pair;
    } else {
        __half2 pair = __floats2half2_rn(low, high);
        return *(uint32_t *)&pair;
    }
#else
    return tern__narrowed<DTYPE>(low) | (uint32_t)tern__narrowed<DTYPE>(high) << 16;
#endif
}

/* The larger elements of two such pairs; a number rather than a NaN. */
template <int DTYPE> __device__ __forceinline__ uint32_t tern__pair_high(uint32_t a, uint32_t b)
{
#ifndef TERN_CUDA_EMULATED
    uint32_t high;
    if constexpr (DTYPE == TERN_BF16)
        asm("max.bf16x2 %0, %1, %2;" : "=r"(high) : "r"(a), "r"(b));
    else
        asm("max.f16x2 %0, %1, %2;" : "=r"(high) : "r"(a), "r"(b));
    return high;
#else
    return tern__narrowed_pair<DTYPE>(
        fmax(tern__widened<DTYPE>((uint16_t)a), tern__widened<DTYPE>((uint16_t)b)),
        fmax(tern__widened<DTYPE>((uint16_t)(a >> 16)), tern__widened<DTYPE>((uint16_t)(b >> 16))));
#endif
}

template <int DTYPE, int N> struct alignas(N * sizeof(tern__stored<DTYPE>)) tern__bunch {
    tern__stored<DTYPE> v[N];

    __device__ __forceinline__ tern__stored<DTYPE> stored(int i) const
    {
        return v[i];
    }
    __device__ __forceinline__ tern__number<DTYPE> get(int i) const
    {
        return tern__widened<DTYPE>(v[i]);
    }
    /* The largest element that is a number. */
    __device__ __forceinline__ tern__number<DTYPE> high(void) const
    {
        tern__number<DTYPE> high = get(0);
#pragma unroll
        for (int i = 1; i < N; i++) high = fmax(high, get(i));
        return high;
    }
    __device__ __forceinline__ void set(const tern__number<DTYPE> *values)
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = tern__narrowed<DTYPE>(values[i]);
    }
    __device__ __forceinline__ void put(int i, tern__number<DTYPE> value)
    {
        v[i] = tern__narrowed<DTYPE>(value);
    }
};

/* Two 16-bit elements per register: single elements would take twice the registers in a kernel that holds
 * several bunches, and nvcc would unpack them as soon as they arrive. */
template <int DTYPE, int N> struct alignas(N * sizeof(uint16_t)) tern__bunch_of_pairs {
    uint32_t pair[N / 2];

    __device__ __forceinline__ uint16_t stored(int i) const
    {
        return (uint16_t)(pair[i / 2] >> i % 2 * 16);
    }
    __device__ __forceinline__ float get(int i) const
    {
        return tern__widened<DTYPE>(stored(i));
    }
    __device__ __forceinline__ float high(void) const
    {
        uint32_t high = pair[0];
#pragma unroll
        for (int i = 1; i < N / 2; i++) high = tern__pair_high<DTYPE>(high, pair[i]);
        return fmax(tern__widened<DTYPE>((uint16_t)high), tern__widened<DTYPE>((uint16_t)(high >> 16)));
    }
    __device__ __forceinline__ void set(const float *values)
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            pair[i] = tern__narrowed_pair<DTYPE>(values[2 * i], values[2 * i + 1]);
    }
    __device__ __forceinline__ void put(int i, float value)
    {
        const int shift = i % 2 * 16;
        pair[i / 2] = (pair[i / 2] & ~(0xffffu << shift)) | (uint32_t)tern__narrowed<DTYPE>(value) << shift;
    }
};
template <> struct tern__bunch<TERN_BF16, 8> : tern__bunch_of_pairs<TERN_BF16, 8> {
};
template <> struct tern__bunch<TERN_F16, 8> : tern__bunch_of_pairs<TERN_F16, 8> {
};
template <> struct tern__bunch<TERN_BF16, 4> : tern__bunch_of_pairs<TERN_BF16, 4> {
};
template <> struct tern__bunch<TERN_F16, 4> : tern__bunch_of_pairs<TERN_F16, 4> {
};
template <> struct tern__bunch<TERN_BF16, 2> : tern__bunch_of_pairs<TERN_BF16, 2> {
};
template <> struct tern__bunch<TERN_F16, 2> : tern__bunch_of_pairs<TERN_F16, 2> {
};

/* Reads N elements from `at` on, a multiple of N; the address is aligned to the bunch's size. */
template <int DTYPE, int N>
__device__ __forceinline__ tern__bunch<DTYPE, N> tern__bunch_get(const void *data, int64_t at)
{
    return *(const tern__bunch<DTYPE, N> *)((const tern__stored<DTYPE> *)data + at);
}

/* Stores 16 bytes at once; in some kernels nvcc would split the store without this. */
template <int DTYPE, int N>
__device__ __forceinline__ void tern__bunch_store(tern__bunch<DTYPE, N> *to,
                                                  const tern__bunch<DTYPE, N> &bunch)
{
#ifndef TERN_CUDA_EMULATED
    if constexpr (sizeof(bunch) == sizeof(uint4)) {
        const uint4 all = *(const uint4 *)&bunch;
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                     "r"(all.x), "r"(all.y), "r"(all.z), "r"(all.w)
                     : "memory");
        return;
    }
#endif
    *to = bunch;
}

/* Returns what to store: the values, or their sums with what is there, rounded once. */
template <int DTYPE, int N>
__device__ __forceinline__ tern__bunch<DTYPE, N>
tern__bunch_of(const void *data, int64_t at, const tern__number<DTYPE> (&values)[N], bool add)
{
    tern__bunch<DTYPE, N> bunch;
    tern__number<DTYPE> sum[N];
    if (add) bunch = tern__bunch_get<DTYPE, N>(data, at);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = add ? bunch.get(i) + values[i] : values[i];
    bunch.set(sum);
    return bunch;
}

/* Stores or adds. */
template <int DTYPE, int N>
__device__ __forceinline__ void tern__bunch_put(void *data, int64_t at,
                                                const tern__number<DTYPE> (&values)[N], bool add)
{
    tern__bunch_store((tern__bunch<DTYPE, N> *)((tern__stored<DTYPE> *)data + at),
                      tern__bunch_of<DTYPE>(data, at, values, add));
}

/* Elements per 16 bytes. */
static inline int tern__bunch_most(int dtype)
{
    return 16 / (int)tern_dtype_bytes((tern_dtype)dtype);
}

/* The largest bunch that divides `neighbours` and fits all views that are present. */
static inline int tern__bunch_lanes(const tern__view *const *views, int count, int64_t neighbours)
{
    size_t lanes = 16;
    for (int i = 0; i < count; i++) {
        if (!views[i]) continue;
        size_t bytes = tern_dtype_bytes(views[i]->dtype);
        while (lanes > 1 && (lanes * bytes > 16 || (uintptr_t)views[i]->data % (lanes * bytes) != 0 ||
                             (size_t)neighbours % lanes != 0))
            lanes /= 2;
    }
    return (int)lanes;
}

/* Whether all views that are present can be read in bunches of 16 bytes. */
static inline bool tern__bunches_fit(const tern__view *const *views, int count, int64_t neighbours)
{
    bool fit = true;
    for (int i = 0; i < count; i++)
        fit &= !views[i] ||
               ((uintptr_t)views[i]->data % 16 == 0 && neighbours % tern__bunch_most(views[i]->dtype) == 0);
    return fit;
}

/* Returns START<DTYPE, N>(..) for a floating point dtype, with N elements per 16 bytes, or 1. */
#define TERN__BUNCHED(dtype, whole, START, ...)                                                              \
    switch ((int)(dtype)) {                                                                                  \
    case TERN_F32: return (whole) ? START<TERN_F32, 4>(__VA_ARGS__) : START<TERN_F32, 1>(__VA_ARGS__);       \
    case TERN_F64: return (whole) ? START<TERN_F64, 2>(__VA_ARGS__) : START<TERN_F64, 1>(__VA_ARGS__);       \
    case TERN_BF16: return (whole) ? START<TERN_BF16, 8>(__VA_ARGS__) : START<TERN_BF16, 1>(__VA_ARGS__);    \
    case TERN_F16: return (whole) ? START<TERN_F16, 8>(__VA_ARGS__) : START<TERN_F16, 1>(__VA_ARGS__);       \
    default: return TERN_E_UNSUPPORTED;                                                                      \
    }

/* The same with N = `lanes` of tern__bunch_lanes. */
#define TERN__BUNCHED_BY(dtype, lanes, START, ...)                                                           \
    switch ((int)(dtype)*16 + (lanes)) {                                                                     \
    case TERN_F32 * 16 + 4: return START<TERN_F32, 4>(__VA_ARGS__);                                          \
    case TERN_F32 * 16 + 2: return START<TERN_F32, 2>(__VA_ARGS__);                                          \
    case TERN_F32 * 16 + 1: return START<TERN_F32, 1>(__VA_ARGS__);                                          \
    case TERN_F64 * 16 + 2: return START<TERN_F64, 2>(__VA_ARGS__);                                          \
    case TERN_F64 * 16 + 1: return START<TERN_F64, 1>(__VA_ARGS__);                                          \
    case TERN_BF16 * 16 + 8: return START<TERN_BF16, 8>(__VA_ARGS__);                                        \
    case TERN_BF16 * 16 + 4: return START<TERN_BF16, 4>(__VA_ARGS__);                                        \
    case TERN_BF16 * 16 + 2: return START<TERN_BF16, 2>(__VA_ARGS__);                                        \
    case TERN_BF16 * 16 + 1: return START<TERN_BF16, 1>(__VA_ARGS__);                                        \
    case TERN_F16 * 16 + 8: return START<TERN_F16, 8>(__VA_ARGS__);                                          \
    case TERN_F16 * 16 + 4: return START<TERN_F16, 4>(__VA_ARGS__);                                          \
    case TERN_F16 * 16 + 2: return START<TERN_F16, 2>(__VA_ARGS__);                                          \
    case TERN_F16 * 16 + 1: return START<TERN_F16, 1>(__VA_ARGS__);                                          \
    default: return TERN_E_UNSUPPORTED;                                                                      \
    }

#endif
