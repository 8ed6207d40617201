/* batch_norm_inner.h - what batch norm's forward and backward kernels share. */
#ifndef TERN_SRC_KERNELS_CPU_BATCH_NORM_INNER_H
#define TERN_SRC_KERNELS_CPU_BATCH_NORM_INNER_H

#include "kernels/batch_norm.h"
#include "kernels/cpu/channels.h"
#include "kernels/cpu/norm_numbers.h"

#include <math.h>

/* Allocates `vectors` arrays of one float per channel, one after the other. */
static inline float *vectors_new(const tern__call *call, const tern__tiling *s, int vectors)
{
    size_t bytes = (size_t)(vectors * s->channels) * sizeof(float);
    return tern__loop_scratch_of(call, TERN__SCRATCH_OPERAND + 1, bytes);
}

static inline float value_of(const tern__view *vector, int64_t c, float fallback)
{
    return vector ? (float)tern__view_get(vector, c) : fallback;
}

static inline double inverse_deviation(const tern__call *call, const tern__view *var, int64_t c)
{
    return 1 / sqrt((double)value_of(var, c, 0) + ((const tern__batch_norm_attr *)call->attr)->eps);
}

#endif
