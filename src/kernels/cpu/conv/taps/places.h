/* places.h - strided f32 convolutions and their data gradients with the sums over all taps in registers. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TAPS_PLACES_H
#define TERN_SRC_KERNELS_CPU_CONV_TAPS_PLACES_H

#include "kernels/cpu/conv/taps/pack.h"
#include "kernels/cpu/conv/taps/space.h"

/* Whether the kernel and its strides are small enough. */
bool tern__taps_places_takes(const tern__taps_space *s);

/* out = or += (call->add) the sums and a bias (NULL: none). packed: all groups of w, each in the room of all
 * inputs and taps of the first (pack.h). */
void tern__taps_places(const tern__call *call, const tern__view *in, const tern__view *out,
                       const tern__taps_space *s, const tern__taps_weight *w, const float *packed,
                       const float *bias);

#endif
