/* channel_sum_strips.c - the loop of channel_sum.c, compiled for each vector width. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/channel_strips.h"
#include "kernels/cpu/channel_sum_strips.h"

/* Adds a row. */
TERN__INLINE void add_row(const void *x, int64_t at, tern__lanes a[TERN__PARTS], int lanes, tern_dtype dtype)
{
#pragma GCC unroll 4
    for (int p = 0; p < TERN__PARTS; p++) a[p] += get_part(x, dtype, at, lanes, p);
}

TERN__INLINE void sum_of(const void *x, const tern__strip *s, double sum[TERN__BLOCK], int lanes,
                         tern_dtype dtype)
{
    for (int64_t first = 0; first < s->rows; first += ROWS) {
        int64_t last = TERN__MIN(s->rows, first + ROWS), r = first;
        tern__lanes a[CHAINS][TERN__PARTS] = {0};
        for (; r + CHAINS <= last; r += CHAINS) {
#pragma GCC unroll 4
            for (int i = 0; i < CHAINS; i++) add_row(x, s->at + (r + i) * s->stride, a[i], lanes, dtype);
        }
        for (; r < last; r++) add_row(x, s->at + r * s->stride, a[0], lanes, dtype);
        add_lanes(sum, a);
    }
}

TERN__SIMD static void add_strip(const tern__view *x, const tern__strip *s, double sum[TERN__BLOCK])
{
    EACH_KIND(sum_of, s, x->dtype, x->data, s, sum);
}

const tern__channel_sum_fns TERN__OF_WIDTH(tern__channel_sum_strips) = {.add = add_strip};
