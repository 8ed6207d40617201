/* elements.h - elements of any dtype in memory, as the type R in which a kernel computes: float, double or
 * int64_t. */
#ifndef TERN_SRC_CUDA_KERNELS_ELEMENTS_H
#define TERN_SRC_CUDA_KERNELS_ELEMENTS_H

#include "cuda/runtime.h"

#include "base/half.h"

/* GPUs have instructions for 16-bit types; the bits are the same except for NaNs. */
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
/* The product, rounded before it is used in a sum; compilers would fuse the two. */
static __device__ __forceinline__ float tern__rounded_product(float a, float b)
{
    return __fmul_rn(a, b);
}
static __device__ __forceinline__ double tern__rounded_product(double a, double b)
{
    return __dmul_rn(a, b);
}
#endif

/* 1 / value for a float that is neither tiny nor huge, to one unit in the last place, in one instruction. */
static __device__ __forceinline__ float tern__reciprocal(float value)
{
#ifdef TERN_CUDA_EMULATED
    return 1 / value;
#else
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(value));
    return reciprocal;
#endif
}
static __device__ __forceinline__ double tern__reciprocal(double value)
{
    return 1 / value;
}

/* e^-x for x >= 0, to two units in the last place plus about one for each unit of x, in two instructions. */
static __device__ __forceinline__ float tern__decayed(float x)
{
#ifdef TERN_CUDA_EMULATED
    return exp(-x);
#else
    float decayed;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(decayed) : "f"(x * -1.44269504f));
    return decayed;
#endif
}
static __device__ __forceinline__ double tern__decayed(double x)
{
    return exp(-x);
}

/* Divides in 32 bits if both fit: 64-bit divisions are slow. */
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
    case TERN_I8: return (R)((const int8_t *)data)[at];
    case TERN_I16: return (R)((const int16_t *)data)[at];
    case TERN_BF16: return (R)tern__bf16_to_f32(((const uint16_t *)data)[at]);
    case TERN_F16: return (R)tern__widened_f16(((const uint16_t *)data)[at]);
    default: return (R)((const bool *)data)[at];
    }
}

/* Stores an element; conversion to an integer truncates. */
template <class R>
__device__ __forceinline__ void tern__element_set(void *data, int dtype, int64_t at, R value)
{
    switch (dtype) {
    case TERN_F32: ((float *)data)[at] = (float)value; break;
    case TERN_F64: ((double *)data)[at] = (double)value; break;
    case TERN_I64: ((int64_t *)data)[at] = (int64_t)value; break;
    case TERN_I32: ((int32_t *)data)[at] = (int32_t)value; break;
    case TERN_U8: ((uint8_t *)data)[at] = (uint8_t)(int64_t)value; break;
    case TERN_I8: ((int8_t *)data)[at] = (int8_t)(int64_t)value; break;
    case TERN_I16: ((int16_t *)data)[at] = (int16_t)(int64_t)value; break;
    case TERN_BF16: ((uint16_t *)data)[at] = tern__narrowed_bf16((float)value); break;
    case TERN_F16: ((uint16_t *)data)[at] = tern__narrowed_f16((float)value); break;
    default: ((bool *)data)[at] = value != 0; break;
    }
}

/* Reads N labels of type L, 16 bytes at a time if the address allows it. */
template <class L, int N>
__device__ __forceinline__ void tern__labels_read(const L *from, int64_t (&label)[N])
{
    enum { EACH = N * sizeof(L) < 16 ? N : 16 / sizeof(L) };
    struct alignas(EACH * sizeof(L)) some {
        L v[EACH];
    };
    bool fits = (uintptr_t)from % sizeof(some) == 0;
    for (int n = 0; n < N; n += EACH) {
        some read;
        if (fits)
            read = *(const some *)(from + n);
        else
            for (int k = 0; k < EACH; k++) read.v[k] = from[n + k];
        for (int k = 0; k < EACH; k++) label[n + k] = read.v[k];
    }
}

/* Reads labels in i64, i32 or u8 without checking that they are classes. */
template <int N>
__device__ __forceinline__ void tern__labels_get(const void *data, int dtype, int64_t at, int64_t (&label)[N])
{
    if (dtype == TERN_I64)
        tern__labels_read((const int64_t *)data + at, label);
    else if (dtype == TERN_I32)
        tern__labels_read((const int32_t *)data + at, label);
    else
        tern__labels_read((const uint8_t *)data + at, label);
}

/* Four neighbours from a multiple of four on, in memory aligned to four elements. */
template <class R> struct tern__four {
    R v[4];
};

/* Whether the address is aligned for reading so many elements at once, by 16 bytes at most. */
static inline bool tern__lanes_fit(const void *data, int dtype, int64_t lanes)
{
    const size_t bytes = (size_t)lanes * tern_dtype_bytes((tern_dtype)dtype);
    return (uintptr_t)data % TERN__MIN(bytes, (size_t)16) == 0;
}
static inline bool tern__fours_fit(const void *data, int dtype)
{
    return tern__lanes_fit(data, dtype, 4);
}

static __device__ __forceinline__ bool tern__is_half_dtype(int dtype)
{
    return dtype == TERN_BF16 || dtype == TERN_F16;
}

/* Converts a bf16 or f16. */
static __device__ __forceinline__ float tern__half_get(uint32_t bits, int dtype)
{
    return dtype == TERN_BF16 ? tern__bf16_to_f32((uint16_t)bits) : tern__widened_f16((uint16_t)bits);
}
static __device__ __forceinline__ uint32_t tern__half_of(float value, int dtype)
{
    return dtype == TERN_BF16 ? tern__narrowed_bf16(value) : tern__narrowed_f16(value);
}

/* Four neighbours as they are in memory, in f32 or 16 bits; other dtypes are read later. A kernel that
 * needs several fours loads all of them before it uses the first. No union: a load into registers that
 * another load may also have filled would wait for that one, although only one of the two takes place. */
typedef struct tern__read {
    float4 single;
    uint2 half;
} tern__read;

static __device__ __forceinline__ tern__read tern__four_read(const void *data, int dtype, int64_t at)
{
    tern__read read = {};
    if (dtype == TERN_F32) read.single = *(const float4 *)((const float *)data + at);
    if (tern__is_half_dtype(dtype)) read.half = *(const uint2 *)((const uint16_t *)data + at);
    return read;
}

/* Converts what was read. */
template <class R>
__device__ __forceinline__ tern__four<R> tern__four_of(const tern__read &read, const void *data, int dtype,
                                                       int64_t at)
{
    tern__four<R> f;
    if (dtype == TERN_F32) return {{(R)read.single.x, (R)read.single.y, (R)read.single.z, (R)read.single.w}};
    if (tern__is_half_dtype(dtype))
        return {{(R)tern__half_get(read.half.x, dtype), (R)tern__half_get(read.half.x >> 16, dtype),
                 (R)tern__half_get(read.half.y, dtype), (R)tern__half_get(read.half.y >> 16, dtype)}};
    for (int i = 0; i < 4; i++) f.v[i] = tern__element<R>(data, dtype, at + i);
    return f;
}

/* The same for any dtype, with twice the registers. */
typedef struct tern__words {
    alignas(16) uint32_t v[8];
} tern__words;

static __device__ __forceinline__ tern__words tern__words_read(const void *data, int dtype, int64_t at)
{
    tern__words w = {};
    uint4 *to = (uint4 *)w.v;
    switch (dtype) {
    case TERN_F64:
    case TERN_I64:
        to[0] = ((const uint4 *)((const int64_t *)data + at))[0];
        to[1] = ((const uint4 *)((const int64_t *)data + at))[1];
        break;
    case TERN_F32:
    case TERN_I32: to[0] = *(const uint4 *)((const int32_t *)data + at); break;
    case TERN_I16:
    case TERN_BF16:
    case TERN_F16: *(uint2 *)w.v = *(const uint2 *)((const uint16_t *)data + at); break;
    default: w.v[0] = *(const uint32_t *)((const uint8_t *)data + at); break;
    }
    return w;
}

/* Tests the dtype once for all four. The data are copied first: used in place, nvcc would unpack them as
 * soon as they arrive. */
template <class R, class T> __device__ __forceinline__ tern__four<R> tern__words_as(const tern__words &w)
{
    enum { EACH = sizeof(T) / sizeof(uint32_t) };
    tern__four<R> f;
    for (int i = 0; i < 4; i++) {
        union {
            uint32_t bits[2];
            T number;
        } one = {{w.v[EACH * i], w.v[EACH * i + EACH - 1]}};
        f.v[i] = (R)one.number;
    }
    return f;
}

/* Byte i of four as a float: it is placed in the last bits of a float whose unit is 1, since a conversion
 * takes as long as four other instructions. */
static __device__ __forceinline__ float tern__byte_of(uint32_t bytes, int i)
{
#ifdef TERN_CUDA_EMULATED
    return (float)(bytes >> 8 * i & 255);
#else
    return __uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7540 + i)) - 0x1p23f;
#endif
}

template <class R> __device__ __forceinline__ tern__four<R> tern__words_of(const tern__words &w, int dtype)
{
    tern__four<R> f;
    switch (dtype) {
    case TERN_F64: return tern__words_as<R, double>(w);
    case TERN_I64: return tern__words_as<R, int64_t>(w);
    case TERN_F32: return tern__words_as<R, float>(w);
    case TERN_I32: return tern__words_as<R, int32_t>(w);
    case TERN_BF16:
    case TERN_F16:
        for (int i = 0; i < 4; i++) f.v[i] = (R)tern__half_get(w.v[i / 2] >> 16 * (i % 2), dtype);
        return f;
    case TERN_I16:
        for (int i = 0; i < 4; i++) f.v[i] = (R)(int16_t)(w.v[i / 2] >> 16 * (i % 2));
        return f;
    case TERN_I8:
        for (int i = 0; i < 4; i++) f.v[i] = (R)(int8_t)(w.v[0] >> 8 * i);
        return f;
    default:
        for (int i = 0; i < 4; i++) f.v[i] = (R)tern__byte_of(w.v[0], i);
        return f;
    }
}

template <class R>
__device__ __forceinline__ tern__four<R> tern__four_get(const void *data, int dtype, int64_t at)
{
    return tern__four_of<R>(tern__four_read(data, dtype, at), data, dtype, at);
}

template <class R>
__device__ __forceinline__ void tern__four_set(void *data, int dtype, int64_t at, const tern__four<R> &f)
{
    if (dtype == TERN_F32) {
        float4 v = {(float)f.v[0], (float)f.v[1], (float)f.v[2], (float)f.v[3]};
        *(float4 *)((float *)data + at) = v;
        return;
    }
    if (tern__is_half_dtype(dtype)) {
        uint32_t half[4];
        for (int i = 0; i < 4; i++) half[i] = tern__half_of((float)f.v[i], dtype);
        uint2 v = {half[0] | half[1] << 16, half[2] | half[3] << 16};
        *(uint2 *)((uint16_t *)data + at) = v;
        return;
    }
    for (int i = 0; i < 4; i++) tern__element_set<R>(data, dtype, at + i, f.v[i]);
}

#endif
