/* conv.h - f32 convolutions as sums over taps. Each tap is a matrix product on those outputs for which it
 * reads the image, so reading padding costs nothing. Two or three spatial dimensions, one group, blocked
 * activations; any kernel, padding, dilation and stride, except that the forward takes strides along rows
 * of at most 2. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TAPS_CONV_H
#define TERN_SRC_KERNELS_CPU_CONV_TAPS_CONV_H

#include "kernels/conv.h"
#include "kernels/cpu/conv/taps/pack.h"
#include "kernels/kernel.h"

/* Whether it takes this convolution (call->attr) or either gradient. */
bool tern__taps_takes(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y);

/* CONV: y = or += conv(x, w) + bias (contiguous; NULL: none). CONV_DATA_GRAD: x = or += the gradient from
 * y. The weight begins `offset` elements after w's data; a copy is kept with it if that pays (pack.h).
 * E_MEMORY. */
int tern__taps(const tern__call *call, const tern__view *x, const tern__view *w, int64_t offset,
               const tern__view *y, const tern__view *bias);
/* dw = or += the weight gradient. E_MEMORY. */
int tern__taps_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                           const tern__view *dw, int64_t offset);

/* Bytes of scratch memory that they use. */
size_t tern__taps_scratch(const tern__call *call, const tern__view *x, const tern__view *w,
                          const tern__view *y);
size_t tern__taps_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                 const tern__view *dy);

#endif
