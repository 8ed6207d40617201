/* product.h - f32 products between weights and positions of blocked activations: small dense products
 * whose operands are in the caches. Winograd's points consist of them, and so do a convolution's taps. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_PRODUCT_H
#define TERN_SRC_KERNELS_CPU_CONV_PRODUCT_H

#include "kernels/kernel.h"

/* sums[o][p] = or += sum over c of weight[c][o] in[c][p], for `width` outputs (16 or 32) at the positions
 * p of a rectangle. in: [blocks][rows][columns][16]; weight: [16 blocks][width]; sums: [width /
 * 16][rows][columns][16]. Pitches are floats from one block to the next, `row`s from one row to the next,
 * `step`s from one position to the next: in's step is 16 or 32, except for gradients of weights. After
 * `near` blocks (0: never), and then after every `period` blocks, the next block of `in` is `skip` further
 * away. A gradient of weights is over as many rectangles as there are `images`. */
typedef struct tern__conv_product {
    const float *weight, *in;
    float *sums;
    int64_t blocks, width;
    int64_t rows, columns;
    int64_t images, in_image, sum_image; /* for gradients of weights only */
    int64_t in_pitch, in_row, in_step;
    int64_t sum_pitch, sum_row, sum_step;
    int64_t near, period, skip; /* not for gradients of weights */
    bool add;
} tern__conv_product;

void tern__conv_multiply(const tern__conv_product *p);

/* sums[o] = or += bias[o] + sum over taps t and c of weight[weight_of[t]][c][o] in[in_of[t]][c], at places of
 * `in` and `sums` that may be anywhere; pitches, width and weights as above. bias: NULL, or of a group. */
typedef struct tern__conv_places {
    const float *weight, *bias;
    int64_t blocks, width;
    int64_t in_pitch, sum_pitch;
    int64_t taps;
    const int64_t *in_of, *weight_of;
    bool add;
} tern__conv_places;

#define TERN__CONV_PLACES 8 /* enough for a panel of any width */

/* The gradient of `weight`, = or +=, from `in` and the gradients of the sums. */
void tern__conv_multiply_back(const tern__conv_product *p, float *dw);

#endif
