/* loss_scale.h - a loss scale, how it goes on, and the attributes of the SCALE_UPDATE kernel. */
#ifndef TERN_SRC_KERNELS_LOSS_SCALE_H
#define TERN_SRC_KERNELS_LOSS_SCALE_H

#include "base/host_device.h"

#include <stdbool.h>

/* The kernel's operand, an f64 each. */
typedef struct tern__loss_scale {
    double scale, inverse;
    double unskipped; /* updates since it was changed, without an overflow           */
    double found;     /* numbers that are not finite, since the last update          */
    double overflows; /* updates that have found some                                */
} tern__loss_scale;
#define TERN__LOSS_SCALE_NUMBERS 5

typedef struct tern__scale_attr {
    double growth, backoff,
        interval;       /* scale *= growth after so many updates, *= backoff after an overflow */
    double least, most; /* of the scale                                                        */
    double single;      /* 1: scale and inverse are f32's, and a scale above `most` does not grow */
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
