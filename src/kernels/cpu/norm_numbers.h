/* norm_numbers.h - per-channel numbers of a norm, of any dtype: running statistics and gradients of
 * weights. */
#ifndef TERN_SRC_KERNELS_CPU_NORM_NUMBERS_H
#define TERN_SRC_KERNELS_CPU_NORM_NUMBERS_H

#include "kernels/kernel.h"

/* Moves a running statistic towards `value`; NULL: there is none. */
static inline void move_towards(const tern__view *running, int64_t c, double value, double share)
{
    if (running) tern__view_set(running, c, (1 - share) * tern__view_get(running, c) + share * value);
}

/* Stores or adds to output `out`, if it is wanted. */
static inline void put_sum(const tern__call *call, int out, int64_t c, double value)
{
    const tern__view *to = call->out[out];
    if (to) tern__view_set(to, c, call->add[out] ? tern__view_get(to, c) + value : value);
}

#endif
