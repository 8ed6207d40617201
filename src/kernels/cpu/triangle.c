/* triangle.c - the lower or upper triangle of each matrix, as bytes: of any dtype. */
#include "kernels/cpu/loops.h"
#include "kernels/triangle.h"

#include <string.h>

int tern__cpu_triangle(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (call->add[0] || x->dtype != y->dtype || !tern__view_is_contiguous(x) || !tern__view_is_contiguous(y))
        return TERN_E_UNSUPPORTED;
    int64_t columns = x->shape[x->ndim - 1], rows = x->shape[x->ndim - 2], count = tern__view_count(x);
    if (count == 0) return TERN_OK;
    size_t bytes = tern_dtype_bytes(x->dtype);
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < count / columns; row++) {
        const char *from = (const char *)x->data + (size_t)(row * columns) * bytes;
        char *to = (char *)y->data + (size_t)(row * columns) * bytes;
        int64_t first, last;
        tern__triangle_columns(call->attr, row % rows, columns, &first, &last);
        size_t before = (size_t)first * bytes, end = (size_t)last * bytes;
        memset(to, 0, before);
        if (to != from && end > before) memcpy(to + before, from + before, end - before);
        memset(to + end, 0, (size_t)columns * bytes - end);
    }
    return TERN_OK;
}
