/* channel_sum_strips.h - the loop of channel_sum.c over a strip of a tile (tiles.h). */
#ifndef TERN_SRC_KERNELS_CPU_CHANNEL_SUM_STRIPS_H
#define TERN_SRC_KERNELS_CPU_CHANNEL_SUM_STRIPS_H

#include "kernels/cpu/tiles.h"
#include "kernels/cpu/widths.h"

typedef struct tern__channel_sum_fns {
    /* sum += the sum of each lane. */
    void (*add)(const tern__view *x, const tern__strip *s, double sum[TERN__BLOCK]);
} tern__channel_sum_fns;

TERN__DECLARE_WIDTHS(tern__channel_sum_fns, tern__channel_sum_strips);

#endif
