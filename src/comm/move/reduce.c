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

/* to = one OP other, where `to` may be one of the two. */
#define DEFINE_LOOP(name, to_type, one_type, other_type, WIDEN_ONE, WIDEN_OTHER, OP)                         \
    TERN__SIMD static void name(void *to, const void *one, const void *other, size_t count)                  \
    {                                                                                                        \
        typedef to_type result __attribute__((aligned(1), may_alias));                                       \
        typedef one_type left __attribute__((aligned(1), may_alias));                                        \
        typedef other_type right __attribute__((aligned(1), may_alias));                                     \
        result *y = to;                                                                                      \
        const left *x1 = one;                                                                                \
        const right *x2 = other;                                                                             \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)                                              \
        {                                                                                                    \
            const to_type a = WIDEN_ONE(x1[i]), b = WIDEN_OTHER(x2[i]);                                      \
            y[i] = (to_type)OP(a, b);                                                                        \
        }                                                                                                    \
    }
#define DEFINE_SAME(name, type, OP) DEFINE_LOOP(name, type, type, type, SAME, SAME, OP)

/* Two halves make an f32 of the block; later ones are added to it. */
#define DEFINE_HALVES(name, WIDEN, OP)                                                                       \
    DEFINE_LOOP(name##_start, float, uint16_t, uint16_t, WIDEN, WIDEN, OP)                                   \
    DEFINE_LOOP(name##_add, float, float, uint16_t, SAME, WIDEN, OP)

/* `of`: the type, or what widens a half. */
#define DEFINE_FLOATS(DEFINE, name, of)                                                                      \
    DEFINE(name##_sum, of, ADD)                                                                              \
    DEFINE(name##_min, of, FLOAT_LOW)                                                                        \
    DEFINE(name##_max, of, FLOAT_HIGH)                                                                       \
    DEFINE(name##_product, of, TIMES)

#define DEFINE_BITS(name, type)                                                                              \
    DEFINE_SAME(name##_sum, type, ADD)                                                                       \
    DEFINE_SAME(name##_product, type, BITS_TIMES)                                                            \
    DEFINE_SAME(name##_and, type, BITS_AND)                                                                  \
    DEFINE_SAME(name##_or, type, BITS_OR)                                                                    \
    DEFINE_SAME(name##_xor, type, BITS_XOR)

#define DEFINE_ORDER(name, type)                                                                             \
    DEFINE_SAME(name##_min, type, LOW)                                                                       \
    DEFINE_SAME(name##_max, type, HIGH)

DEFINE_FLOATS(DEFINE_SAME, f32, float)
DEFINE_FLOATS(DEFINE_SAME, f64, double)
DEFINE_FLOATS(DEFINE_HALVES, bf16, tern__bf16_to_f32)
DEFINE_FLOATS(DEFINE_HALVES, f16, tern__f16_to_f32)
DEFINE_BITS(bits64, uint64_t)
DEFINE_BITS(bits32, uint32_t)
DEFINE_BITS(bits16, uint16_t)
DEFINE_BITS(bits8, uint8_t)
DEFINE_ORDER(i64, int64_t)
DEFINE_ORDER(i32, int32_t)
DEFINE_ORDER(i16, int16_t)
DEFINE_ORDER(i8, int8_t)
DEFINE_ORDER(u8, uint8_t)
DEFINE_SAME(bool_or, uint8_t, OR)
DEFINE_SAME(bool_and, uint8_t, AND)
DEFINE_SAME(bool_xor, uint8_t, DIFFER)

typedef void (*reduce_loop)(void *to, const void *one, const void *other, size_t count);
typedef struct loops {
    reduce_loop start; /* of two ranks' elements */
    reduce_loop add;   /* of a block and a rank's elements */
} loops;

#define SAMES(name)                                                                                          \
    {                                                                                                        \
        name, name                                                                                           \
    }
#define HALVES(name)                                                                                         \
    {                                                                                                        \
        name##_start, name##_add                                                                             \
    }
#define FLOATS(LOOPS, name)                                                                                  \
    {                                                                                                        \
        [TERN_SUM] = LOOPS(name##_sum), [TERN_AVG] = LOOPS(name##_sum), [TERN_MIN] = LOOPS(name##_min),      \
        [TERN_MAX] = LOOPS(name##_max), [TERN_PRODUCT] = LOOPS(name##_product)                               \
    }
#define INTEGERS(name, bits)                                                                                 \
    {                                                                                                        \
        [TERN_SUM] = SAMES(bits##_sum), [TERN_MIN] = SAMES(name##_min), [TERN_MAX] = SAMES(name##_max),      \
        [TERN_PRODUCT] = SAMES(bits##_product), [TERN_BAND] = SAMES(bits##_and),                             \
        [TERN_BOR] = SAMES(bits##_or), [TERN_BXOR] = SAMES(bits##_xor)                                       \
    }

static const loops loops_of[TERN_DTYPE_COUNT][TERN_BXOR + 1] = {
    [TERN_F32] = FLOATS(SAMES, f32),
    [TERN_F64] = FLOATS(SAMES, f64),
    [TERN_BF16] = FLOATS(HALVES, bf16),
    [TERN_F16] = FLOATS(HALVES, f16),
    [TERN_I64] = INTEGERS(i64, bits64),
    [TERN_I32] = INTEGERS(i32, bits32),
    [TERN_I16] = INTEGERS(i16, bits16),
    [TERN_I8] = INTEGERS(i8, bits8),
    [TERN_U8] = INTEGERS(u8, bits8),
    [TERN_BOOL] = {[TERN_SUM] = SAMES(bool_or),
                   [TERN_MIN] = SAMES(bool_and),
                   [TERN_MAX] = SAMES(bool_or),
                   [TERN_PRODUCT] = SAMES(bool_and),
                   [TERN_BAND] = SAMES(bool_and),
                   [TERN_BOR] = SAMES(bool_or),
                   [TERN_BXOR] = SAMES(bool_xor)},
};

/* ---- finishing a block: division for a mean, rounding ---- */

#define DEFINE_MEAN(name, type)                                                                              \
    TERN__SIMD static void name##_mean(void *block, int world, size_t count)                                 \
    {                                                                                                        \
        typedef type element __attribute__((aligned(1), may_alias));                                         \
        element *x = block;                                                                                  \
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
    reduce_loop join; /* of two blocks */
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
    if (left > 1 && right == 1) r->loops->add(block, block, r->in[first + left] + offset, count);
    if (right == 1) return;
    reduce_pairwise(r, first + left, right, other, offset, count);
    r->join(block, block, other, count);
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
    size_t step = block_bytes / (is_wider ? sizeof(float) : r.size);
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
