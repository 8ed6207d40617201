/* conv.h - convolutions with 3x3 weights by Winograd's algorithm F(4x4, 3x3): a quarter of the
 * multiplications, for an error of some roundings more. Stride 1, any dilation d, one group, blocked
 * activations, padding up to 2 d, contiguous weights. Volumes, too, sheet by sheet: their weights are as many
 * 3x3 weights as they have sheets, with any padding and dilation along the depth.
 *
 * Activations are f32, bf16 or f16, both of one dtype, weights and their gradients of that or f32. All is
 * computed in f32: elements are widened where a transform loads them, and a result is rounded once, where it
 * is stored or added to what is there.
 *
 * Sources: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016); Barabasz et al., Error
 * Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks (2020). */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_CONV_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_CONV_H

#include "kernels/conv.h"
#include "kernels/kernel.h"

/* Whether it computes this convolution (call->attr) or either of its gradients. */
bool tern__winograd_takes(const tern__call *call, const tern__view *x, const tern__view *w,
                          const tern__view *y);

/* call's kernel is CONV: y = or += conv(x, w) + bias (contiguous, of y's dtype; NULL: none). CONV_DATA_GRAD:
 * x = or += the gradient from y. A copy of w is kept with it where that pays (pack.h). E_MEMORY. */
int tern__winograd(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y,
                   const tern__view *bias);
/* dw = or += the weight gradient. E_MEMORY. */
int tern__winograd_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                               const tern__view *dw);

/* Bytes of scratch that they take. */
size_t tern__winograd_scratch(const tern__call *call, const tern__view *x, const tern__view *w,
                              const tern__view *y);
size_t tern__winograd_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                     const tern__view *dy);

#endif
