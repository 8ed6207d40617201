/* product_panels.h - the inner loops of product.c, for each vector width. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_PRODUCT_PANELS_H
#define TERN_SRC_KERNELS_CPU_CONV_PRODUCT_PANELS_H

#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/widths.h"

typedef struct tern__product_panels {
    int64_t outputs;           /* most outputs of a panel: 16 or 32 */
    int64_t positions, narrow; /* most positions of a panel of so many outputs, and of one of 16 */
    int64_t back_outputs;      /* most outputs of sum_back */
    /* Sums a row's positions, the first at in and sums, for outputs from `out` on. */
    void (*sum)(const tern__conv_product *p, int64_t out, int64_t outputs, const float *in, float *sums,
                int64_t positions);
    /* Sums at as many scattered places, for outputs from `out` on; NULL: there are no such sums. */
    void (*sum_places)(const tern__conv_places *p, int64_t out, int64_t outputs, const float *const *in,
                       float *const *sums, int count);
    /* The gradients of all inputs' weights for outputs from `out` on. */
    void (*sum_back)(const tern__conv_product *p, int64_t out, int64_t outputs, float *dw);
} tern__product_panels;

static inline int64_t tern__product_positions(const tern__product_panels *panels, int64_t outputs)
{
    return outputs == TERN__BLOCK ? panels->narrow : panels->positions;
}

TERN__DECLARE_WIDTHS(tern__product_panels, tern__product_panels);

#endif
