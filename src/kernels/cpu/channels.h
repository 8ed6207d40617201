/* channels.h - what per-channel sums over tiles (tiles.h) share. */
#ifndef TERN_SRC_KERNELS_CPU_CHANNELS_H
#define TERN_SRC_KERNELS_CPU_CHANNELS_H

#include "kernels/cpu/loops.h"
#include "kernels/cpu/tiles.h"

/* One value per channel: the lanes' values, or their sum if they are positions of one channel. */
static inline void gather(double *to, const tern__tile *t, const double lanes[TERN__BLOCK])
{
    if (t->channels > 1) {
        memcpy(to, lanes, (size_t)t->channels * sizeof(*to));
        return;
    }
    *to = 0;
    for (int l = 0; l < TERN__BLOCK; l++) *to += lanes[l];
}

/* Whether the activation is contiguous in x's layout. */
static inline bool stands_as(const tern__view *view, const tern__view *x)
{
    return !view || (view->dtype == x->dtype && view->layout == x->layout && tern__view_is_dense(view));
}

static inline bool takes(const tern__view *x)
{
    return x->dtype != TERN_F64 && stands_as(x, x);
}

/* The tiles' sums: a row of one value per channel for each tile of a channel, followed by a row of totals. */
typedef struct partial {
    double *first, *second;
    int64_t tiles, channels;
} partial;

/* The totals. */
static inline double *first_of(const partial *sums)
{
    return sums->first + sums->tiles * sums->channels;
}

static inline double *second_of(const partial *sums)
{
    return sums->second + sums->tiles * sums->channels;
}

static inline int partial_new(const tern__call *call, const tern__tiling *s, partial *sums)
{
    int64_t size = (s->tiles + 1) * s->channels;
    double *data = tern__loop_scratch(call, (size_t)(2 * size) * sizeof(*data));
    *sums = (partial){data, data + size, s->tiles, s->channels};
    return data ? TERN_OK : TERN_E_MEMORY;
}

#endif
