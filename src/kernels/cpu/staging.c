/* staging.c - loads and stores stretches of views in any dtype. */
#include "kernels/cpu/staging.h"

#include "base/half.h"
#include "kernels/cpu/lanes.h"

/* Conversions between elements of each dtype and numbers. Conversion to an integer truncates. */
#define STAGE_DTYPES(X, ...)                                                                                 \
    X(F32, float, v, (float)v, __VA_ARGS__)                                                                  \
    X(F64, double, v, (double)v, __VA_ARGS__)                                                                \
    X(I64, int64_t, v, (int64_t)v, __VA_ARGS__)                                                              \
    X(I32, int32_t, v, (int32_t)(int64_t)v, __VA_ARGS__)                                                     \
    X(I16, int16_t, v, (int16_t)(int64_t)v, __VA_ARGS__)                                                     \
    X(I8, int8_t, v, (int8_t)(int64_t)v, __VA_ARGS__)                                                        \
    X(U8, uint8_t, v, (uint8_t)(int64_t)v, __VA_ARGS__)                                                      \
    X(BF16, uint16_t, tern__bf16_to_f32(v), tern__bf16_from_f32((float)v), __VA_ARGS__)                      \
    X(F16, uint16_t, tern__f16_to_f32(v), tern__f16_from_f32((float)v), __VA_ARGS__)                         \
    X(BOOL, bool, v, v != 0, __VA_ARGS__)

#define DEFINE(dtype, type, get, put, suffix, real)                                                          \
    TERN__INLINE real get_##dtype##_##suffix(type v)                                                         \
    {                                                                                                        \
        return (real)(get);                                                                                  \
    }                                                                                                        \
    TERN__INLINE type put_##dtype##_##suffix(real v)                                                         \
    {                                                                                                        \
        return (put);                                                                                        \
    }                                                                                                        \
    TERN__SIMD static void load_##dtype##_##suffix(void *to, const void *from, int64_t stride, int64_t n)    \
    {                                                                                                        \
        real *s = to;                                                                                        \
        const type *x = from;                                                                                \
        if (stride == 1)                                                                                     \
            for (int64_t i = 0; i < n; i++) s[i] = get_##dtype##_##suffix(x[i]);                             \
        else if (stride == 0)                                                                                \
            for (int64_t i = 0; i < n; i++) s[i] = get_##dtype##_##suffix(x[0]);                             \
        else                                                                                                 \
            for (int64_t i = 0; i < n; i++) s[i] = get_##dtype##_##suffix(x[i * stride]);                    \
    }                                                                                                        \
    TERN__SIMD static void store_##dtype##_##suffix(void *to, const void *from, int64_t stride, int64_t n,   \
                                                    bool add)                                                \
    {                                                                                                        \
        type *y = to;                                                                                        \
        const real *s = from;                                                                                \
        if (stride == 1 && !add)                                                                             \
            for (int64_t i = 0; i < n; i++) y[i] = put_##dtype##_##suffix(s[i]);                             \
        else if (stride == 1)                                                                                \
            for (int64_t i = 0; i < n; i++)                                                                  \
                y[i] = put_##dtype##_##suffix(s[i] + get_##dtype##_##suffix(y[i]));                          \
        else                                                                                                 \
            for (int64_t i = 0; i < n; i++)                                                                  \
                y[i * stride] =                                                                              \
                    put_##dtype##_##suffix(add ? s[i] + get_##dtype##_##suffix(y[i * stride]) : s[i]);       \
    }
STAGE_DTYPES(DEFINE, f32, float)
STAGE_DTYPES(DEFINE, f64, double)
STAGE_DTYPES(DEFINE, i64, int64_t)

typedef void (*load_fn)(void *to, const void *from, int64_t stride, int64_t n);
typedef void (*store_fn)(void *to, const void *from, int64_t stride, int64_t n, bool add);

#define LOAD(dtype, type, get, put, suffix, real)  [TERN_##dtype] = load_##dtype##_##suffix,
#define STORE(dtype, type, get, put, suffix, real) [TERN_##dtype] = store_##dtype##_##suffix,
static const load_fn loads[TERN__COMPUTES][TERN_DTYPE_COUNT] = {
    {STAGE_DTYPES(LOAD, f32, )}, {STAGE_DTYPES(LOAD, f64, )}, {STAGE_DTYPES(LOAD, i64, )}};
static const store_fn stores[TERN__COMPUTES][TERN_DTYPE_COUNT] = {
    {STAGE_DTYPES(STORE, f32, )}, {STAGE_DTYPES(STORE, f64, )}, {STAGE_DTYPES(STORE, i64, )}};

void tern__stage_load(tern__compute compute, tern__stage *stage, tern_dtype dtype, const void *data,
                      int64_t at, int64_t stride, int64_t count)
{
    const char *from = (const char *)data + at * (int64_t)tern_dtype_bytes(dtype);
    loads[compute][dtype](stage, from, stride, count);
}

void tern__stage_store(tern__compute compute, const tern__stage *stage, tern_dtype dtype, void *data,
                       int64_t at, int64_t stride, int64_t count, bool add)
{
    char *to = (char *)data + at * (int64_t)tern_dtype_bytes(dtype);
    stores[compute][dtype](to, stage, stride, count, add);
}
