/* conv.h - bf16 and f32 convolutions and their gradients by the tile unit, for one group of channels.
 * Activations are plain or blocked. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_CONV_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_CONV_H

#include "kernels/conv.h"
#include "kernels/cpu/conv/tiles/pack.h"
#include "kernels/kernel.h"

/* x and y, one of which is computed; `tiles`: the weight's (tiles/pack.h). */
int tern__amx_conv(const tern__call *call, const tern__view *x, const tern__view *y,
                   const tern__amx_weight *weight, const void *tiles, const tern__view *bias);
/* The weight gradient, stored or added (call->add[0]) to a plain view of f32, bf16 or f16, whose taps may
 * have gaps. */
int tern__amx_conv_weight(const tern__call *call, const tern__view *x, const tern__view *dy,
                          const tern__view *dw);

#endif
