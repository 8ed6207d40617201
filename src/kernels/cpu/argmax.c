#include "kernels/cpu/loops.h"

int tern__cpu_argmax(const tern__call *call)
{
    const tern__view *x = call->in[0];
    if (x->layout != TERN__PLAIN || !tern__is_dense(x, x)) return TERN_E_UNSUPPORTED;
    int64_t rows = x->shape[0], classes = x->shape[1], *index = call->out[0]->data;
    for (int64_t n = 0; n < rows; n++) {
        const float *row = (const float *)x->data + n * classes;
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            if (!(row[c] <= row[best]) && row[best] == row[best]) best = c; /* NaN is the largest */
        index[n] = best;
    }
    return TERN_OK;
}
