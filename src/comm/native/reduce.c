/* reduce.c - the chunk functions. Every element is combined in rank order and the result written to every
 * rank, so all have the same bits. A mean multiplies by 1/p where p is a power of two, which is exact, and
 * divides elsewhere. Buffers may start at any byte. */
#include "comm/native/native.h"

#include "kernels/kernel.h"

#include <string.h>

enum { block_bytes = 8 << 10 }; /* of all ranks in turn: stays in the first-level cache */

/* Integers wrap, as unsigned ones do. A NaN wins over any number. */
#define ADD(a, b)        ((a) + (b))
#define FLOAT_LOW(a, b)  ((a) < (b) || (a) != (a) ? (a) : (b))
#define FLOAT_HIGH(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define LOW(a, b)        ((a) < (b) ? (a) : (b))
#define HIGH(a, b)       ((a) > (b) ? (a) : (b))

/* `into` for the many: into = into OP from. `pair` for two: both = one OP other, in one pass. */
#define DEFINE_LOOPS(name, type, OP)                                                                         \
    typedef type name##_type __attribute__((aligned(1), may_alias));                                         \
    TERN__SIMD static void name##_into(void *into, const void *from, size_t count)                           \
    {                                                                                                        \
        name##_type *restrict a = into;                                                                      \
        const name##_type *restrict b = from;                                                                \
        for (size_t i = 0; i < count; i++) a[i] = (type)OP(a[i], b[i]);                                      \
    }                                                                                                        \
    TERN__SIMD static void name##_pair(void *one, void *other, size_t count)                                 \
    {                                                                                                        \
        name##_type *restrict a = one;                                                                       \
        name##_type *restrict b = other;                                                                     \
        for (size_t i = 0; i < count; i++) a[i] = b[i] = (type)OP(a[i], b[i]);                               \
    }

#define DEFINE_MEAN(name, type)                                                                              \
    TERN__SIMD static void name##_mean_pair(void *one, void *other, size_t count)                            \
    {                                                                                                        \
        name##_sum_type *restrict a = one;                                                                   \
        name##_sum_type *restrict b = other;                                                                 \
        for (size_t i = 0; i < count; i++) a[i] = b[i] = (a[i] + b[i]) * (type)0.5;                          \
    }                                                                                                        \
    TERN__SIMD static void name##_times(void *into, double by, size_t count)                                 \
    {                                                                                                        \
        name##_sum_type *a = into;                                                                           \
        type factor = (type)by;                                                                              \
        for (size_t i = 0; i < count; i++) a[i] *= factor;                                                   \
    }                                                                                                        \
    TERN__SIMD static void name##_over(void *into, double by, size_t count)                                  \
    {                                                                                                        \
        name##_sum_type *a = into;                                                                           \
        type divisor = (type)by;                                                                             \
        for (size_t i = 0; i < count; i++) a[i] /= divisor;                                                  \
    }

DEFINE_LOOPS(f32_sum, float, ADD)
DEFINE_LOOPS(f32_min, float, FLOAT_LOW)
DEFINE_LOOPS(f32_max, float, FLOAT_HIGH)
DEFINE_MEAN(f32, float)
DEFINE_LOOPS(f64_sum, double, ADD)
DEFINE_LOOPS(f64_min, double, FLOAT_LOW)
DEFINE_LOOPS(f64_max, double, FLOAT_HIGH)
DEFINE_MEAN(f64, double)
DEFINE_LOOPS(i64_sum, uint64_t, ADD)
DEFINE_LOOPS(i64_min, int64_t, LOW)
DEFINE_LOOPS(i64_max, int64_t, HIGH)
DEFINE_LOOPS(i32_sum, uint32_t, ADD)
DEFINE_LOOPS(i32_min, int32_t, LOW)
DEFINE_LOOPS(i32_max, int32_t, HIGH)
DEFINE_LOOPS(u8_sum, uint8_t, ADD)
DEFINE_LOOPS(u8_min, uint8_t, LOW)
DEFINE_LOOPS(u8_max, uint8_t, HIGH)

typedef struct loops {
    void (*into)(void *into, const void *from, size_t count);
    void (*pair)(void *one, void *other, size_t count);
    void (*times)(void *into, double by, size_t count); /* a mean's */
    void (*over)(void *into, double by, size_t count);
} loops;

#define LOOPS(name)                                                                                          \
    {                                                                                                        \
        .into = name##_into, .pair = name##_pair                                                             \
    }
#define MEAN(name)                                                                                           \
    {                                                                                                        \
        .into = name##_sum_into, .pair = name##_mean_pair, .times = name##_times, .over = name##_over        \
    }

static const loops table[TERN_DTYPE_COUNT][TERN_MAX + 1] = {
    [TERN_F32] = {LOOPS(f32_sum), MEAN(f32), LOOPS(f32_min), LOOPS(f32_max)},
    [TERN_F64] = {LOOPS(f64_sum), MEAN(f64), LOOPS(f64_min), LOOPS(f64_max)},
    [TERN_I64] = {LOOPS(i64_sum), {0}, LOOPS(i64_min), LOOPS(i64_max)},
    [TERN_I32] = {LOOPS(i32_sum), {0}, LOOPS(i32_min), LOOPS(i32_max)},
    [TERN_U8] = {LOOPS(u8_sum), {0}, LOOPS(u8_min), LOOPS(u8_max)},
};

/* In rank 0's memory, then copied to the others. */
static void reduce_block(const loops *of, char *const *at, int world, size_t offset, size_t count,
                         size_t size)
{
    char *result = at[0] + offset;
    for (int rank = 1; rank < world; rank++) of->into(result, at[rank] + offset, count);
    if (of->times && (world & (world - 1)) == 0)
        of->times(result, 1.0 / world, count);
    else if (of->over)
        of->over(result, world, count);
    for (int rank = 1; rank < world; rank++) memcpy(at[rank] + offset, result, count * size);
}

void tern__reduce_chunk(tern_dtype dtype, tern_reduce_op op, char *const *at, int world, size_t count)
{
    const loops *of = &table[dtype][op];
    if (world == 2) {
        of->pair(at[0], at[1], count);
        return;
    }
    size_t size = tern_dtype_bytes(dtype), block = block_bytes / size;
    for (size_t first = 0; first < count; first += block)
        reduce_block(of, at, world, first * size, TERN__MIN(block, count - first), size);
}
