#include "ops/ops.h"

/* Gives dy on with the input's shape. */
static int reshape_gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *x = &node->in[0]->view, *dy = tern__dy(node);
    tern__view view = tern__view_make(dy->dtype, TERN__PLAIN, x->ndim, x->shape);
    view.data = dy->data;
    return tern__grad_give(scope, node, 0, &view);
}

static tern_tensor *reshape(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape)
{
    x = tern__plain(scope, x);
    if (!x) return NULL;
    tern__view view = tern__view_make(x->view.dtype, TERN__PLAIN, ndim, shape);
    view.data = x->view.data;
    tern_tensor *y = tern__share(scope, x, &view);
    if (y) tern__record(scope, "reshape", reshape_gradient, y, 1, &x);
    return y;
}

/* Replaces a -1 by the size that fits; false if the counts differ. */
static bool fill_in(const tern__view *x, int ndim, const int64_t *shape, int64_t full[TERN_NDIM_MAX])
{
    int64_t known = 1, count = tern__view_count(x);
    int open = -1;
    for (int d = 0; d < ndim; d++) {
        full[d] = shape[d];
        if (shape[d] == -1 && open < 0)
            open = d;
        else if (shape[d] < 0)
            return false;
        else if (__builtin_mul_overflow(known, shape[d], &known))
            return false;
    }
    if (open < 0) return known == count;
    if (known == 0 || count % known) return false;
    full[open] = count / known;
    return true;
}

tern_tensor *tern_reshape(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape)
{
    int64_t full[TERN_NDIM_MAX];
    if (!TERN__ENTER(scope, __func__, 1, &x) || !tern__ndim_fits(scope, __func__, ndim)) return NULL;
    if (fill_in(&x->view, ndim, shape, full)) return reshape(scope, x, ndim, full);
    tern__shape_fail(scope, __func__, &x->view, "cannot be seen as", ndim, shape);
    return NULL;
}

tern_tensor *tern__batch_of_one(tern_scope *scope, tern_tensor *x)
{
    int64_t shape[TERN_NDIM_MAX] = {1};
    for (int d = 0; d < x->view.ndim; d++) shape[d + 1] = x->view.shape[d];
    return reshape(scope, x, x->view.ndim + 1, shape);
}

tern_tensor *tern__without_batch(tern_scope *scope, tern_tensor *x)
{
    return x ? reshape(scope, x, x->view.ndim - 1, x->view.shape + 1) : NULL;
}

tern_tensor *tern_flatten(tern_scope *scope, tern_tensor *x, int first_dim)
{
    int64_t shape[TERN_NDIM_MAX];
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    int ndim = TERN__MAX(x->view.ndim, 1), first = first_dim < 0 ? first_dim + ndim : first_dim;
    if (first < 0 || first >= ndim) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "flatten: dimension %d of %d does not exist",
                         first_dim, x->view.ndim);
        return NULL;
    }
    int64_t rest = 1;
    for (int d = 0; d < x->view.ndim; d++) {
        shape[d] = x->view.shape[d];
        if (d >= first) rest *= shape[d];
    }
    shape[first] = rest;
    return reshape(scope, x, first + 1, shape);
}
