/* loss_scale.h - a loss scale, its update, and the attributes of the kernels UNSCALE and SCALE_UPDATE. */
#ifndef TERN_SRC_KERNELS_LOSS_SCALE_H
#define TERN_SRC_KERNELS_LOSS_SCALE_H

#include "base/host_device.h"

#include <stdbool.h>

/* Inputs whose numbers are in device memory: another factor, and a flag that makes g zero unless it is 0. */
#define TERN__UNSCALE_FACTOR 1
#define TERN__UNSCALE_DROP   2

typedef struct tern__unscale_attr {
    double factor;
} tern__unscale_attr;

/* The kernel's operand: five f64. */
typedef struct tern__loss_scale {
    double scale, inverse;
    double unskipped; /* updates without overflow since the scale changed */
    double found;     /* non-finite gradients since the last update */
    double overflows; /* updates that have found any */
} tern__loss_scale;
#define TERN__LOSS_SCALE_NUMBERS 5

typedef struct tern__scale_attr {
    double growth, backoff,
        interval;       /* scale *= growth after `interval` updates, *= backoff after an overflow */
    double least, most; /* bounds of the scale */
    double single; /* 1: scale and inverse are rounded to f32, and a scale that would exceed `most` does not
                      grow */
} tern__scale_attr;

TERN__ANYWHERE double tern__loss_scale_round(double value, const tern__scale_attr *a)
{
    return a->single != 0 ? (double)(float)value : value;
}

TERN__ANYWHERE void tern__loss_scale_update(tern__loss_scale *s, const tern__scale_attr *a)
{
    double smaller = tern__loss_scale_round(s->scale * a->backoff, a);
    double larger = tern__loss_scale_round(s->scale * a->growth, a);
    bool found = s->found > 0;
    s->unskipped = found ? 0 : s->unskipped + 1;
    s->overflows += found;
    if (found) s->scale = smaller < a->least ? a->least : smaller;
    if (s->unskipped == a->interval) {
        if (larger > a->most) larger = a->single != 0 ? s->scale : a->most;
        s->scale = larger;
        s->unskipped = 0;
    }
    s->inverse = tern__loss_scale_round(1 / s->scale, a);
    s->found = 0;
}

#endif
