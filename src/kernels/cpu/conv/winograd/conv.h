/* conv.h - convolutions with 3x3 weights by Winograd's algorithm F(4x4, 3x3): a quarter of the
 * multiplications, with an error of a few more roundings. Stride 1, any dilation d, one group, blocked
 * activations, padding up to 2 d, contiguous weights. Also volumes, sheet by sheet: a weight of several
 * sheets is several 3x3 weights, with any padding and dilation along the depth.
 *
 * Activations are f32, bf16 or f16, both of one dtype; weights and their gradients have that dtype or f32.
 * Everything is computed in f32: elements are converted where a transform loads them, and a result is
 * rounded once, where it is stored or added.
 *
 * Sources: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016); Barabasz et al.,
 * Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks (2020). */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_CONV_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_CONV_H

#include "kernels/conv.h"
#include "kernels/kernel.h"

/* Whether it takes this convolution (call->attr) or either gradient. */
bool tern__winograd_takes(const tern__call *call, const tern__view *x, const tern__view *w,
                          const tern__view *y);

/* CONV: y = or += conv(x, w) + bias (contiguous, of y's dtype; NULL: none). CONV_DATA_GRAD: x = or += the
 * gradient from y. A copy of w is kept with it if that pays (pack.h). E_MEMORY. */
int tern__winograd(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y,
                   const tern__view *bias);
/* dw = or += the weight gradient. E_MEMORY. */
int tern__winograd_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                               const tern__view *dw);

/* Bytes of scratch memory that they use. */
size_t tern__winograd_scratch(const tern__call *call, const tern__view *x, const tern__view *w,
                              const tern__view *y);
size_t tern__winograd_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                     const tern__view *dy);

#endif
