/* amx_conv.h - convolutions of bf16 and their gradients by the tile unit, for one group of channels.
 * Activations are plain or blocked; weights stand as conv.c has brought them, sixteen by sixteen. */
#ifndef TERN_SRC_KERNELS_CPU_AMX_CONV_H
#define TERN_SRC_KERNELS_CPU_AMX_CONV_H

#include "kernels/conv.h"
#include "kernels/kernel.h"

/* x and y, whichever of them is computed; its weights are packed for that (OI[d]hw16i16o2i to oneDNN, zeros
 * where channels fill no block): of O by C in a forward, of C by O in a data gradient; where x is unfolded
 * (amx_unfold.h) of O by C x taps. */
int tern__amx_conv(const tern__call *call, const tern__view *x, const tern__view *y, const void *weight,
                   const tern__view *bias);
/* The weight gradient in f32 (OI[d]hw16i16o, likewise), stored. */
int tern__amx_conv_weight(const tern__call *call, const tern__view *x, const tern__view *dy, float *dw);

#endif
