#include "ops/broadcast.h"

/* Returns the size of dimension d of `ndim`, the last of which are those of `view`. */
static int64_t size_of(const tern__view *view, int ndim, int d)
{
    int own = d - (ndim - view->ndim);
    return own < 0 ? 1 : view->shape[own];
}

bool tern__broadcast_shape(const tern__view *a, const tern__view *b, int *ndim, int64_t shape[TERN_NDIM_MAX])
{
    *ndim = TERN__MAX(a->ndim, b->ndim);
    for (int d = 0; d < *ndim; d++) {
        int64_t of_a = size_of(a, *ndim, d), of_b = size_of(b, *ndim, d);
        if (of_a != of_b && of_a != 1 && of_b != 1) return false;
        shape[d] = of_a == 1 ? of_b : of_a;
    }
    return true;
}

tern__view tern__broadcast_view(const tern__view *view, int ndim, const int64_t *shape)
{
    if (view->layout != TERN__PLAIN && view->ndim == ndim && view->shape[1] == shape[1]) return *view;
    tern__view seen = {.data = view->data, .dtype = view->dtype, .layout = TERN__PLAIN, .ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - view->ndim);
        seen.shape[d] = shape[d];
        seen.stride[d] = size_of(view, ndim, d) == 1 ? 0 : view->stride[own];
    }
    return seen;
}
