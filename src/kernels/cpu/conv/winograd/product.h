/* product.h - the products of Winograd's algorithm, one point at a time: small dense products whose
 * operands lie in the caches. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_PRODUCT_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_PRODUCT_H

#include "kernels/kernel.h"

/* Whether vectors are of 16 floats, or of 8 where the CPU has no registers for that. */
bool tern__winograd_is_wide(void);

/* Tiles are computed in panels of an even number of them, at least so many: what stands behind the last tile
 * is read and written up to there. */
#define TERN__WINOGRAD_LEAST 8
int64_t tern__winograd_room(int64_t tiles);

/* sums[o][t] = or += sum over c of weight[c][o] in[c][t]: `width` outputs (16 or 32) of one point.
 * in: [blocks][in_pitch / 16 tiles][16]; weight: [16 blocks][width]; sums: [width / 16][sum_pitch / 16][16].
 */
typedef struct tern__winograd_product {
    const float *weight, *in;
    float *sums;
    int64_t blocks, tiles, width;
    int64_t in_pitch, sum_pitch;
    bool add;
} tern__winograd_product;

void tern__winograd_multiply(const tern__winograd_product *p);

/* The gradient of `weight`, = or +=, from in and those of the sums. */
void tern__winograd_multiply_back(const tern__winograd_product *p, float *dw);

#endif
