/* reduce_weighted.c - weighted means, block by block. The ranks' elements times their weights are added in
 * reduce.c's order in a scratch block that stays in the L1 cache, divided, and written to every output.
 * Compiled with -ffp-contract=off: products are rounded before they are added, so the bits are the same on
 * every CPU. */
#include "comm/move/reduce.h"

#include "base/base.h"
#include "base/half.h"
#include "kernels/kernel.h"

#include <string.h>

enum { block_elements = 1 << 10 };

#define SAME(a) (a)

#define DEFINE_LOOPS(name, type, wide, WIDEN, NARROW)                                                        \
    typedef type name##_type __attribute__((aligned(1), may_alias));                                         \
    TERN__SIMD static void name##_add(void *block, const void *more, double weight, size_t count)            \
    {                                                                                                        \
        wide *restrict to = block;                                                                           \
        const name##_type *restrict a = more;                                                                \
        for (size_t i = 0; i < count; i++) to[i] += (wide)weight * WIDEN(a[i]);                              \
    }                                                                                                        \
    TERN__SIMD static void name##_end(void *out, const void *block, double shares, size_t count)             \
    {                                                                                                        \
        name##_type *restrict to = out;                                                                      \
        const wide *restrict x = block;                                                                      \
        for (size_t i = 0; i < count; i++) to[i] = NARROW(x[i] / (wide)shares);                              \
    }

DEFINE_LOOPS(f32, float, float, SAME, SAME)
DEFINE_LOOPS(f64, double, double, SAME, SAME)
DEFINE_LOOPS(bf16, uint16_t, float, tern__bf16_to_f32, tern__bf16_from_f32)
DEFINE_LOOPS(f16, uint16_t, float, tern__f16_to_f32, tern__f16_from_f32)

typedef struct loops {
    void (*add)(void *block, const void *more, double weight, size_t count);
    void (*end)(void *out, const void *block, double shares, size_t count);
} loops;

static const loops loops_of[TERN_DTYPE_COUNT] = {
    [TERN_F32] = {f32_add, f32_end},
    [TERN_F64] = {f64_add, f64_end},
    [TERN_BF16] = {bf16_add, bf16_end},
    [TERN_F16] = {f16_add, f16_end},
};

typedef struct weighted {
    const loops *loops, *wide; /* of the elements, and of blocks */
    const double *weights;
    const char *const *in;
} weighted;

/* block = the sum of `ranks` >= 1 ranks' elements from `first` on, each times its weight. */
static void sum_pairwise(const weighted *w, int first, int ranks, char *block, size_t offset, size_t count)
{
    _Alignas(TERN__LINE) char other[block_elements * sizeof(double)];
    int left = ranks > 1 ? tern__pairwise_cut(ranks) : 0, last = first + ranks - 1;
    if (left)
        sum_pairwise(w, first, left, block, offset, count);
    else
        memset(block, 0, sizeof(other));
    if (ranks - left > 1) {
        sum_pairwise(w, first + left, ranks - left, other, offset, count);
        w->wide->add(block, other, 1, count);
    } else if (w->weights[last] != 0) {
        w->loops->add(block, w->in[last] + offset, w->weights[last], count);
    }
}

void tern__reduce_weighted(tern_dtype dtype, const double *weights, double shares, const char *const *in,
                           int world, char *const *out, int outs, size_t count)
{
    _Alignas(TERN__LINE) char block[block_elements * sizeof(double)];
    const weighted w = {.loops = &loops_of[dtype],
                        .wide = &loops_of[dtype == TERN_F64 ? TERN_F64 : TERN_F32],
                        .weights = weights,
                        .in = in};
    size_t size = tern_dtype_bytes(dtype);
    for (size_t first = 0; first < count; first += block_elements) {
        size_t here = TERN__MIN(count - first, block_elements), at = first * size;
        sum_pairwise(&w, 0, world, block, at, here);
        w.loops->end(out[0] + at, block, shares, here);
        for (int i = 1; i < outs; i++) memcpy(out[i] + at, out[0] + at, here * size);
    }
}
