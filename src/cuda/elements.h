/* elements.h - elements of memory of any dtype, as the type R that a kernel computes in: float, double or
 * int64_t. */
#ifndef TERN_SRC_CUDA_ELEMENTS_H
#define TERN_SRC_CUDA_ELEMENTS_H

#include "cuda/runtime.h"

#include "base/half.h"

/* GPUs have instructions for 16 bits; the bits are the same, but for those of NaNs. */
#ifdef TERN_CUDA_EMULATED
#define tern__narrowed_bf16 tern__bf16_from_f32
#define tern__narrowed_f16  tern__f16_from_f32
#define tern__widened_f16   tern__f16_to_f32
template <class R> R tern__rounded_product(R a, R b)
{
    volatile R product = a * b;
    return product;
}
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define tern__narrowed_bf16(value) __bfloat16_as_ushort(__float2bfloat16_rn(value))
#define tern__narrowed_f16(value)  __half_as_ushort(__float2half_rn(value))
#define tern__widened_f16(bits)    __half2float(__ushort_as_half(bits))
/* Rounded before anything is added to it or taken off, which compilers do in one step else. */
static __device__ __forceinline__ float tern__rounded_product(float a, float b)
{
    return __fmul_rn(a, b);
}
static __device__ __forceinline__ double tern__rounded_product(double a, double b)
{
    return __dmul_rn(a, b);
}
#endif

/* Divisions of 64 bits are slow. */
static __device__ __forceinline__ int64_t tern__quotient(int64_t a, int64_t b)
{
    return ((uint64_t)a | (uint64_t)b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

template <class R> __device__ __forceinline__ R tern__element(const void *data, int dtype, int64_t at)
{
    switch (dtype) {
    case TERN_F32: return (R)((const float *)data)[at];
    case TERN_F64: return (R)((const double *)data)[at];
    case TERN_I64: return (R)((const int64_t *)data)[at];
    case TERN_I32: return (R)((const int32_t *)data)[at];
    case TERN_U8: return (R)((const uint8_t *)data)[at];
    case TERN_BF16: return (R)tern__bf16_to_f32(((const uint16_t *)data)[at]);
    case TERN_F16: return (R)tern__widened_f16(((const uint16_t *)data)[at]);
    default: return (R)((const bool *)data)[at];
    }
}

/* A number that is no integer loses its fraction on the way to one. */
template <class R>
__device__ __forceinline__ void tern__element_set(void *data, int dtype, int64_t at, R value)
{
    switch (dtype) {
    case TERN_F32: ((float *)data)[at] = (float)value; break;
    case TERN_F64: ((double *)data)[at] = (double)value; break;
    case TERN_I64: ((int64_t *)data)[at] = (int64_t)value; break;
    case TERN_I32: ((int32_t *)data)[at] = (int32_t)value; break;
    case TERN_U8: ((uint8_t *)data)[at] = (uint8_t)(int64_t)value; break;
    case TERN_BF16: ((uint16_t *)data)[at] = tern__narrowed_bf16((float)value); break;
    case TERN_F16: ((uint16_t *)data)[at] = tern__narrowed_f16((float)value); break;
    default: ((bool *)data)[at] = value != 0; break;
    }
}

/* Four neighbours at a multiple of four, from memory that is aligned to four elements. */
template <class R> struct tern__four {
    R v[4];
};

static inline bool tern__fours_fit(const void *data, int dtype)
{
    return (uintptr_t)data % TERN__MIN(4 * tern_dtype_bytes((tern_dtype)dtype), (size_t)16) == 0;
}

template <class R>
__device__ __forceinline__ tern__four<R> tern__four_get(const void *data, int dtype, int64_t at)
{
    tern__four<R> f;
    if (dtype == TERN_F32) {
        float4 v = *(const float4 *)((const float *)data + at);
        f.v[0] = (R)v.x, f.v[1] = (R)v.y, f.v[2] = (R)v.z, f.v[3] = (R)v.w;
        return f;
    }
    if (dtype == TERN_BF16 || dtype == TERN_F16) {
        uint2 v = *(const uint2 *)((const uint16_t *)data + at);
        uint16_t half[4] = {(uint16_t)v.x, (uint16_t)(v.x >> 16), (uint16_t)v.y, (uint16_t)(v.y >> 16)};
        for (int i = 0; i < 4; i++) f.v[i] = tern__element<R>(half, dtype, i);
        return f;
    }
    for (int i = 0; i < 4; i++) f.v[i] = tern__element<R>(data, dtype, at + i);
    return f;
}

template <class R>
__device__ __forceinline__ void tern__four_set(void *data, int dtype, int64_t at, const tern__four<R> &f)
{
    if (dtype == TERN_F32) {
        float4 v = {(float)f.v[0], (float)f.v[1], (float)f.v[2], (float)f.v[3]};
        *(float4 *)((float *)data + at) = v;
        return;
    }
    if (dtype == TERN_BF16 || dtype == TERN_F16) {
        uint16_t half[4];
        for (int i = 0; i < 4; i++) tern__element_set<R>(half, dtype, i, f.v[i]);
        uint2 v = {half[0] | (unsigned)half[1] << 16, half[2] | (unsigned)half[3] << 16};
        *(uint2 *)((uint16_t *)data + at) = v;
        return;
    }
    for (int i = 0; i < 4; i++) tern__element_set<R>(data, dtype, at + i, f.v[i]);
}

#endif
