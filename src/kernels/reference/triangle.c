/* triangle.c - the lower or upper triangle of each matrix. */
#include "kernels/triangle.h"
#include "kernels/reference/reference.h"

int tern__reference_triangle(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t columns = x->shape[x->ndim - 1], rows = x->shape[x->ndim - 2], count = tern__view_count(x);
    for (int64_t n = 0; n < count; n++) {
        int64_t first, last, j = n % columns;
        tern__triangle_columns(call->attr, n / columns % rows, columns, &first, &last);
        bool stays = j >= first && j < last;
        if (tern__dtype_is_float(x->dtype))
            tern__reference_put(call, 0, n, stays ? tern__view_get(x, n) : 0);
        else
            tern__view_set_int(y, n, stays ? tern__view_get_int(x, n) : 0);
    }
    return TERN_OK;
}
