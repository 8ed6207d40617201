/* product_panels.h - the inner loops of product.c, for each width of vectors. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_PRODUCT_PANELS_H
#define TERN_SRC_KERNELS_CPU_CONV_PRODUCT_PANELS_H

#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/widths.h"

typedef struct tern__product_panels {
    int64_t outputs, positions; /* of a panel, at most; outputs are 16 or 32 */
    /* A row's positions whose first is at in and sums, and outputs from `out` on. */
    void (*sum)(const tern__conv_product *p, int64_t out, int64_t outputs, const float *in, float *sums,
                int64_t positions);
    /* The gradients of all inputs' weights, of outputs from `out` on. */
    void (*sum_back)(const tern__conv_product *p, int64_t out, int64_t outputs, float *dw);
} tern__product_panels;

TERN__DECLARE_WIDTHS(tern__product_panels, tern__product_panels);

#endif
