/* reduce.h - reduces several ranks' elements to one result, for back ends and for collectives on ordinary
 * memory. */
#ifndef TERN_SRC_COMM_MOVE_REDUCE_H
#define TERN_SRC_COMM_MOVE_REDUCE_H

#include <tern/collectives.h>
#include <tern/device.h>

/* Returns how many of `count` >= 2 neighbours a pairwise sum combines before the others: the largest power
 * of two below count. */
static inline int tern__pairwise_cut(int count)
{
    int cut = 1;
    while (cut * 2 < count) cut *= 2;
    return cut;
}

/* out[0..outs)[0..count) = the reduction of in[0..world)[0..count), world >= 2, pairwise in rank order.
 * Buffers may start at any byte. An output may be the same buffer as an input; otherwise no two buffers
 * overlap. AVG is for floating-point dtypes; BAND, BOR and BXOR are for the others; PREMUL_SUM is
 * tern__reduce_weighted. */
void tern__reduce(tern_dtype dtype, tern_reduce_op op, const char *const *in, int world, char *const *out,
                  int outs, size_t count);

/* The same for the weighted mean sum(weights[r] * in[r]) / shares; world >= 1. Does not read an input of
 * weight 0. */
void tern__reduce_weighted(tern_dtype dtype, const double *weights, double shares, const char *const *in,
                           int world, char *const *out, int outs, size_t count);

/* to[0..count) = factor * from[0..count) in a device's memory, queued on its stream. */
int tern__reduce_scale(tern_device *device, tern_dtype dtype, const void *from, void *to, uint64_t count,
                       double factor, tern_error *err);

#endif
