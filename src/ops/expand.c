/* expand.c - a tensor repeated to a larger shape. The result is a copy, as no tensor has one element in two
 * places; its gradient is summed over what was repeated. */
#include "ops/pointwise.h"

static int expand_gradient(tern_scope *scope, tern__node *node)
{
    return tern__sum_into(scope, node, 0, tern__dy(node));
}

/* Replaces each -1 by x's size; false if x cannot be repeated to this shape. */
static bool fill_in(const tern__view *x, int ndim, const int64_t *shape, int64_t full[TERN_NDIM_MAX])
{
    int more = ndim - x->ndim;
    for (int d = 0; d < ndim; d++) {
        int64_t size = d < more ? 1 : x->shape[d - more];
        full[d] = d >= more && shape[d] == -1 ? size : shape[d];
        if (full[d] < 0 || (size != 1 && full[d] != size)) return false;
    }
    return more >= 0;
}

static tern_tensor *expand(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape)
{
    if (!tern__can_be(scope, "tern_expand", x->view.dtype, ndim, shape)) return NULL;
    if (!(x = tern__plain(scope, x))) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, ndim, shape);
    if (!y) return NULL;
    tern__view seen = tern__broadcast_view(&x->view, ndim, shape);
    if (!tern__copy(scope, &y->view, &seen)) return NULL;
    tern__record(scope, "expand", expand_gradient, y, 1, &x);
    return y;
}

tern_tensor *tern_expand(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape)
{
    int64_t full[TERN_NDIM_MAX];
    if (!TERN__ENTER(scope, __func__, 1, &x) || !tern__ndim_fits(scope, __func__, ndim)) return NULL;
    if (fill_in(&x->view, ndim, shape, full)) return expand(scope, x, ndim, full);
    tern__shape_fail(scope, __func__, &x->view, "cannot be repeated to", ndim, shape);
    return NULL;
}
