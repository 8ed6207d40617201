/* reduce.c - combines the ranks' elements block by block. A block is reduced in a scratch block that stays in
 * the L1 cache, and copied from there to every output, so all outputs have the same bits. bf16 and f16 are
 * f32 in the scratch block and rounded once, at the end. A mean over p ranks multiplies by 1/p if p is a
 * power of two, which is exact, and divides otherwise.
 *
 * Neighbours are combined first, then pairs of neighbours, and so on: ((0+1) + (2+3)) + (4+5). So the ranks
 * of a host, or the microbatches of a rank, may be combined on their own, if they are 2, 4, 8 .. each, and
 * the result has the same bits. It also rounds less than adding up one rank after another. */
#include "comm/move/reduce.h"

#include "base/base.h"
#include "base/half.h"
#include "kernels/kernel.h"
#include "kernels/pointwise.h"

#include <string.h>

enum { block_bytes = 8 << 10 }; /* of the scratch block */

/* ---- one operation of one dtype ---- */

/* Integer sums and products wrap around, computed unsigned: C would multiply u16 as signed ints. MIN and MAX
 * of a NaN and a number are the NaN. */
#define ADD(a, b)        ((a) + (b))
#define TIMES(a, b)      ((a) * (b))
#define BITS_TIMES(a, b) (1u * (a) * (b))
#define FLOAT_LOW(a, b)  ((a) < (b) || (a) != (a) ? (a) : (b))
#define FLOAT_HIGH(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define LOW(a, b)        ((a) < (b) ? (a) : (b))
#define HIGH(a, b)       ((a) > (b) ? (a) : (b))
#define OR(a, b)         (((a) | (b)) != 0)
#define AND(a, b)        (((a) != 0) & ((b) != 0))
#define DIFFER(a, b)     (((a) != 0) ^ ((b) != 0))
#define BITS_AND(a, b)   ((a) & (b))
#define BITS_OR(a, b)    ((a) | (b))
#define BITS_XOR(a, b)   ((a) ^ (b))
#define SAME(a)          (a)

/* `start`: block = one OP other; block may be one of the two. `add`: block = block OP more. */
#define DEFINE_LOOPS(name, type, wide, WIDEN, OP)                                                            \
    typedef type name##_type __attribute__((aligned(1), may_alias));                                         \
    typedef wide name##_wide __attribute__((aligned(1), may_alias));                                         \
    static inline wide name##_of(wide a, wide b)                                                             \
    {                                                                                                        \
        return (wide)OP(a, b);                                                                               \
    }                                                                                                        \
    TERN__SIMD static void name##_start(void *block, const void *one, const void *other, size_t count)       \
    {                                                                                                        \
        name##_wide *to = block;                                                                             \
        const name##_type *a = one, *b = other;                                                              \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) to[i] = name##_of(WIDEN(a[i]), WIDEN(b[i])); \
    }                                                                                                        \
    TERN__SIMD static void name##_add(void *block, const void *more, size_t count)                           \
    {                                                                                                        \
        name##_wide *restrict to = block;                                                                    \
        const name##_type *restrict a = more;                                                                \
        for (size_t i = 0; i < count; i++) to[i] = name##_of(to[i], WIDEN(a[i]));                            \
    }

#define DEFINE_FLOATS(name, type, wide, WIDEN)                                                               \
    DEFINE_LOOPS(name##_sum, type, wide, WIDEN, ADD)                                                         \
    DEFINE_LOOPS(name##_min, type, wide, WIDEN, FLOAT_LOW)                                                   \
    DEFINE_LOOPS(name##_max, type, wide, WIDEN, FLOAT_HIGH)                                                  \
    DEFINE_LOOPS(name##_product, type, wide, WIDEN, TIMES)

#define DEFINE_INTEGERS(name, type, bits)                                                                    \
    DEFINE_LOOPS(name##_sum, bits, bits, SAME, ADD)                                                          \
    DEFINE_LOOPS(name##_min, type, type, SAME, LOW)                                                          \
    DEFINE_LOOPS(name##_max, type, type, SAME, HIGH)                                                         \
    DEFINE_LOOPS(name##_product, bits, bits, SAME, BITS_TIMES)                                               \
    DEFINE_LOOPS(name##_band, bits, bits, SAME, BITS_AND)                                                    \
    DEFINE_LOOPS(name##_bor, bits, bits, SAME, BITS_OR)                                                      \
    DEFINE_LOOPS(name##_bxor, bits, bits, SAME, BITS_XOR)

DEFINE_FLOATS(f32, float, float, SAME)
DEFINE_FLOATS(f64, double, double, SAME)
DEFINE_FLOATS(bf16, uint16_t, float, tern__bf16_to_f32)
DEFINE_FLOATS(f16, uint16_t, float, tern__f16_to_f32)
DEFINE_INTEGERS(i64, int64_t, uint64_t)
DEFINE_INTEGERS(i32, int32_t, uint32_t)
DEFINE_INTEGERS(i16, int16_t, uint16_t)
DEFINE_INTEGERS(i8, int8_t, uint8_t)
DEFINE_INTEGERS(u8, uint8_t, uint8_t)
DEFINE_LOOPS(bool_or, uint8_t, uint8_t, SAME, OR)
DEFINE_LOOPS(bool_and, uint8_t, uint8_t, SAME, AND)
DEFINE_LOOPS(bool_xor, uint8_t, uint8_t, SAME, DIFFER)

typedef struct loops {
    void (*start)(void *block, const void *one, const void *other, size_t count);
    void (*add)(void *block, const void *more, size_t count);
} loops;

#define LOOPS(name)                                                                                          \
    {                                                                                                        \
        name##_start, name##_add                                                                             \
    }
#define INTEGERS(name)                                                                                       \
    {                                                                                                        \
        [TERN_SUM] = LOOPS(name##_sum), [TERN_MIN] = LOOPS(name##_min), [TERN_MAX] = LOOPS(name##_max),      \
        [TERN_PRODUCT] = LOOPS(name##_product), [TERN_BAND] = LOOPS(name##_band),                            \
        [TERN_BOR] = LOOPS(name##_bor), [TERN_BXOR] = LOOPS(name##_bxor)                                     \
    }
#define FLOATS(name)                                                                                         \
    {                                                                                                        \
        [TERN_SUM] = LOOPS(name##_sum), [TERN_AVG] = LOOPS(name##_sum), [TERN_MIN] = LOOPS(name##_min),      \
        [TERN_MAX] = LOOPS(name##_max), [TERN_PRODUCT] = LOOPS(name##_product)                               \
    }

static const loops loops_of[TERN_DTYPE_COUNT][TERN_BXOR + 1] = {
    [TERN_F32] = FLOATS(f32),
    [TERN_F64] = FLOATS(f64),
    [TERN_I64] = INTEGERS(i64),
    [TERN_I32] = INTEGERS(i32),
    [TERN_I16] = INTEGERS(i16),
    [TERN_I8] = INTEGERS(i8),
    [TERN_U8] = INTEGERS(u8),
    [TERN_BF16] = FLOATS(bf16),
    [TERN_F16] = FLOATS(f16),
    [TERN_BOOL] = {[TERN_SUM] = LOOPS(bool_or),
                   [TERN_MIN] = LOOPS(bool_and),
                   [TERN_MAX] = LOOPS(bool_or),
                   [TERN_PRODUCT] = LOOPS(bool_and),
                   [TERN_BAND] = LOOPS(bool_and),
                   [TERN_BOR] = LOOPS(bool_or),
                   [TERN_BXOR] = LOOPS(bool_xor)},
};

/* ---- finishing a block: division for a mean, rounding ---- */

#define DEFINE_MEAN(name, type)                                                                              \
    TERN__SIMD static void name##_mean(void *block, int world, size_t count)                                 \
    {                                                                                                        \
        name##_sum_wide *x = block;                                                                          \
        type parts = (type)world, factor = 1 / parts;                                                        \
        if ((world & (world - 1)) == 0)                                                                      \
            for (size_t i = 0; i < count; i++) x[i] *= factor;                                               \
        else                                                                                                 \
            for (size_t i = 0; i < count; i++) x[i] /= parts;                                                \
    }

#define DEFINE_ROUND(name)                                                                                   \
    TERN__SIMD static void name##_round(void *to, const void *block, size_t count)                           \
    {                                                                                                        \
        uint16_t *restrict half = to;                                                                        \
        const float *restrict x = block;                                                                     \
        for (size_t i = 0; i < count; i++) half[i] = tern__##name##_from_f32(x[i]);                          \
    }

DEFINE_MEAN(f32, float)
DEFINE_MEAN(f64, double)
DEFINE_ROUND(bf16)
DEFINE_ROUND(f16)

typedef struct ends {
    void (*mean)(void *block, int world, size_t count);
    void (*round)(void *to, const void *block, size_t count); /* NULL: the block has the outputs' dtype */
} ends;

static const ends ends_of[TERN_DTYPE_COUNT] = {
    [TERN_F32] = {.mean = f32_mean},
    [TERN_F64] = {.mean = f64_mean},
    [TERN_BF16] = {.mean = f32_mean, .round = bf16_round},
    [TERN_F16] = {.mean = f32_mean, .round = f16_round},
};

/* ---- blocks ---- */

typedef struct reduction {
    const loops *loops;
    void (*join)(void *block, const void *more, size_t count); /* block = block OP another block */
    const ends *ends;
    bool is_mean;
    const char *const *in;
    char *const *out;
    int world, outs;
    size_t size; /* of an element */
} reduction;

/* Returns the block to reduce in: the first output, unless the block is wider or that output is also an input
 * that is read after the first write. */
static char *choose_block(const reduction *r, char *scratch, size_t offset)
{
    if (r->ends->round) return scratch;
    for (int rank = 2; rank < r->world; rank++)
        if (r->in[rank] == r->out[0]) return scratch;
    return r->out[0] + offset;
}

/* block = the reduction of the `ranks` >= 2 ranks from `first` on: of the largest power of two below `ranks`,
 * and of the rest. */
static void reduce_pairwise(const reduction *r, int first, int ranks, char *block, size_t offset,
                            size_t count)
{
    _Alignas(TERN__LINE) char other[block_bytes];
    int left = tern__pairwise_cut(ranks), right = ranks - left;
    if (left == 1)
        r->loops->start(block, r->in[first] + offset, r->in[first + 1] + offset, count);
    else
        reduce_pairwise(r, first, left, block, offset, count);
    if (left > 1 && right == 1) r->loops->add(block, r->in[first + left] + offset, count);
    if (right == 1) return;
    reduce_pairwise(r, first + left, right, other, offset, count);
    r->join(block, other, count);
}

static void reduce_block(const reduction *r, size_t offset, size_t count)
{
    _Alignas(TERN__LINE) char scratch[block_bytes], rounded[block_bytes / 2];
    char *block = choose_block(r, scratch, offset), *result = block;
    reduce_pairwise(r, 0, r->world, block, offset, count);
    if (r->is_mean) r->ends->mean(block, r->world, count);
    if (r->ends->round) r->ends->round(result = rounded, block, count);
    for (int i = result == r->out[0] + offset; i < r->outs; i++)
        memcpy(r->out[i] + offset, result, count * r->size);
}

void tern__reduce(tern_dtype dtype, tern_reduce_op op, const char *const *in, int world, char *const *out,
                  int outs, size_t count)
{
    bool is_wider = ends_of[dtype].round;
    const reduction r = {.loops = &loops_of[dtype][op],
                         .join = loops_of[is_wider ? TERN_F32 : dtype][op].add,
                         .ends = &ends_of[dtype],
                         .is_mean = op == TERN_AVG,
                         .in = in,
                         .out = out,
                         .world = world,
                         .outs = outs,
                         .size = tern_dtype_bytes(dtype)};
    size_t step = block_bytes / TERN__MAX(r.size, r.ends->round ? sizeof(float) : 1);
    for (size_t first = 0; first < count; first += step)
        reduce_block(&r, first * r.size, TERN__MIN(step, count - first));
}

/* ---- in a device's memory ---- */

static tern__view elements_of(tern_dtype dtype, const void *data, uint64_t count)
{
    int64_t shape = (int64_t)count;
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 1, &shape);
    view.data = (void *)data;
    return view;
}

int tern__reduce_scale(tern_device *device, tern_dtype dtype, const void *from, void *to, uint64_t count,
                       double factor, tern_error *err)
{
    tern__view in = elements_of(dtype, from, count), out = elements_of(dtype, to, count);
    const tern__pointwise_attr attr = {.k = {factor}};
    const tern__call call = {
        .device = device, .kernel = TERN__SCALE, .in = {&in}, .out = {&out}, .attr = &attr, .err = err};
    return count ? tern__kernel_run(&call) : TERN_OK;
}
