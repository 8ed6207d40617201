/* product.c - products in panels of some outputs by some positions of a row (product_panels.h). */
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/conv/product_panels.h"

/* Merges rows that are contiguous in both operands. */
static tern__conv_product joined(const tern__conv_product *p)
{
    tern__conv_product j = *p;
    if (j.in_row == j.columns * j.in_step && j.sum_row == j.columns * j.sum_step) {
        j.columns *= j.rows;
        j.rows = 1;
    }
    return j;
}

/* Cuts a row into panels of nearly equal size. */
static void product_multiply(const tern__conv_product *p, const tern__product_panels *panels, int64_t out,
                             int64_t outputs)
{
    int64_t most = tern__product_positions(panels, outputs), count = (p->columns + most - 1) / most;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < count; i++) {
            int64_t first = p->columns * i / count, last = p->columns * (i + 1) / count;
            const float *in = p->in + r * p->in_row + first * p->in_step;
            float *sums = p->sums + r * p->sum_row + first * p->sum_step;
            panels->sum(p, out, outputs, in, sums, last - first);
        }
}

void tern__conv_multiply(const tern__conv_product *p)
{
    const tern__product_panels *panels = TERN__BY_WIDTH(tern__product_panels);
    tern__conv_product j = joined(p);
    int64_t outputs = TERN__MIN(j.width, panels->outputs);
    for (int64_t out = 0; out < j.width; out += outputs) product_multiply(&j, panels, out, outputs);
}

void tern__conv_multiply_back(const tern__conv_product *p, float *dw)
{
    const tern__product_panels *panels = TERN__BY_WIDTH(tern__product_panels);
    tern__conv_product j = joined(p);
    int64_t outputs = TERN__MIN(j.width, panels->back_outputs);
    for (int64_t out = 0; out < j.width; out += outputs) panels->sum_back(&j, out, outputs, dw);
}
