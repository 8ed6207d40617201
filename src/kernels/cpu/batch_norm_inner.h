/* batch_norm_inner.h - what batch norm's forward and backward kernels share. */
#ifndef TERN_SRC_KERNELS_CPU_BATCH_NORM_INNER_H
#define TERN_SRC_KERNELS_CPU_BATCH_NORM_INNER_H

#include "kernels/batch_norm.h"
#include "kernels/cpu/channels.h"
#include "kernels/cpu/norm_numbers.h"

#include <math.h>

/* Memory for numbers of every channel. */
static inline void *vectors_new(const tern__call *call, const tern__tiling *s, size_t bytes_of_channel)
{
    return tern__loop_scratch_of(call, TERN__SCRATCH_OPERAND + 1, (size_t)s->channels * bytes_of_channel);
}

static inline double value_of(const tern__view *vector, int64_t c, double fallback)
{
    return vector ? tern__view_get(vector, c) : fallback;
}

/* What the float next to a mean lacks of it. Far from zero this may be more than the deviation: f32 loops
 * subtract the float, which is exact for values next to it, and have the rest in a constant. */
static inline double mean_rest(double mean)
{
    return isfinite(mean) ? mean - (double)(float)mean : 0;
}

/* rest * factor, 0 without a rest whatever the factor. */
static inline double rest_times(double rest, double factor)
{
    return rest != 0 ? rest * factor : 0;
}

/* The constants of a channel: y = (x - centre) scale + shift, where centre + rest is the mean. */
typedef struct norm_line {
    float centre, scale, shift;
    double rest, inverse; /* inverse: 1 / deviation */
} norm_line;

static inline norm_line norm_line_of(const tern__call *call, const tern__view *const vectors[4], int64_t c)
{
    double eps = ((const tern__batch_norm_attr *)call->attr)->eps, mean = value_of(vectors[0], c, 0);
    double rest = mean_rest(mean), inverse = 1 / sqrt(value_of(vectors[1], c, 0) + eps);
    double scale = inverse * value_of(vectors[2], c, 1);
    double shift = value_of(vectors[3], c, 0) - rest_times(rest, scale);
    return (norm_line){(float)mean, (float)scale, (float)shift, rest, inverse};
}

#endif
