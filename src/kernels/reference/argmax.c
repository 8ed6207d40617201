#include "kernels/reference/reference.h"

int tern__reference_argmax(const tern__call *call)
{
    const tern__view *x = call->in[0];
    int64_t rows = x->shape[0], classes = x->shape[1];
    for (int64_t n = 0; n < rows; n++) {
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++) {
            double v = tern__view_get(x, n * classes + c), top = tern__view_get(x, n * classes + best);
            if (!(v <= top) && top == top) best = c; /* NaN is the largest */
        }
        tern__view_set(call->out[0], n, (double)best);
    }
    return TERN_OK;
}
