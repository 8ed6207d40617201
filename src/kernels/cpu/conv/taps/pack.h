/* pack.h - a convolution's weight tap by tap, in the order of the products. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TAPS_PACK_H
#define TERN_SRC_KERNELS_CPU_CONV_TAPS_PACK_H

#include "kernels/kernel.h"

/* A weight (O, C, [kd,] kh, kw), whose taps may have gaps, or its gradient. turned: as for a data
 * gradient, with inputs and outputs swapped. Packed weights are in groups of 32 outputs, the last possibly
 * of 16: tap t of input c of a group's outputs begins at t * pitch + c * width. */
typedef struct tern__taps_weight {
    float *data;
    int64_t ins, outs; /* after turning */
    int64_t in_stride, out_stride;
    int64_t taps[3], tap_stride[3]; /* with two dimensions the first is one tap */
} tern__taps_weight;

/* Some taps of some inputs, in whole blocks of 16, for a group's outputs. */
typedef struct tern__taps_part {
    int64_t group, in, ins, tap, taps;
} tern__taps_part;

tern__taps_weight tern__taps_weight_of(const tern__view *w, int64_t offset, bool turned);

static inline int64_t tern__taps_groups(const tern__taps_weight *w)
{
    return (w->outs + 31) / 32;
}

static inline int64_t tern__taps_width(const tern__taps_weight *w, int64_t group)
{
    return TERN__MIN(32, w->outs - 32 * group);
}

/* The pitch for `ins` inputs. It is a cache line off a power of two, so that taps do not map to the same
 * cache set. */
static inline int64_t tern__taps_pitch(const tern__taps_weight *w, int64_t group, int64_t ins)
{
    return ins * tern__taps_width(w, group) + 16;
}

/* The floats of so many inputs and taps of a group; no group has more than the first. */
static inline int64_t tern__taps_room(const tern__taps_weight *w, int64_t ins, int64_t taps)
{
    return taps * tern__taps_pitch(w, 0, ins);
}

/* Packs a whole group. */
void tern__taps_pack(float *to, const tern__taps_weight *w, int64_t group);
/* Stores or adds to the same part of the weight. */
void tern__taps_unpack(const float *from, const tern__taps_weight *w, const tern__taps_part *part, bool add);

#endif
