/* argmax.c - the largest or smallest element along a dimension, or several in order, and the index. Only what
 * is chosen gets the gradient. */
#include "kernels/topk.h"
#include "ops/ops.h"

typedef struct choice {
    tern_tensor *value, *index;
} choice;

static int argmax_gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {
        .kernel = TERN__CHOICE_GRAD, .in = {tern__dy(node), &node->saved[0].view}, .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

/* Resolves `dim`, which must not be empty; a scalar counts as one dimension of one element. -1 on failure. */
static int argmax_check(tern_scope *scope, const char *func, const char *name, const tern_tensor *x, int dim)
{
    char shape[TERN__SHAPE_TEXT];
    if (x->view.ndim == 0 && (dim == 0 || dim == -1)) return 0;
    int d = tern__dim_of(scope, func, x, dim);
    if (d < 0 || x->view.shape[d] > 0) return d;
    tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: nothing to choose from in dimension %d of %s", name, dim,
                     tern__shape_text(&x->view, shape));
    return -1;
}

/* Returns x's shape with the dimension set to 1, or left out. */
static tern__view result_shape(const tern__view *x, int dim, bool keep)
{
    tern__view shape = {.ndim = 0};
    for (int d = 0; d < x->ndim; d++)
        if (d != dim || keep) shape.shape[shape.ndim++] = d == dim ? 1 : x->shape[d];
    return shape;
}

static choice argmax_choose(tern_scope *scope, const char *func, tern__kernel kernel, tern_tensor *x, int dim,
                            bool keep, bool values)
{
    choice c = {NULL, NULL}, none = c;
    const char *name = tern__kernel_name(kernel);
    if (!TERN__ENTER(scope, func, 1, &x) || (dim = argmax_check(scope, func, name, x, dim)) < 0) return none;
    if (!(x = tern__plain(scope, x))) return none;
    tern__view s = result_shape(&x->view, dim, keep);
    tern__dim_attr attr = {dim};
    c.index = tern__result(scope, TERN_I64, TERN__PLAIN, s.ndim, s.shape);
    if (values) c.value = tern__result(scope, x->view.dtype, TERN__PLAIN, s.ndim, s.shape);
    tern__call call = {.kernel = kernel, .in = {&x->view}, .attr = &attr};
    if (!c.index || (values && !c.value)) return none;
    call.out[0] = &c.index->view;
    call.out[1] = values ? &c.value->view : NULL;
    if (!tern__run(scope, &call)) return none;
    tern__node *node = values ? tern__record(scope, name, argmax_gradient, c.value, 1, &x) : NULL;
    tern__save(node, 0, c.index);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    return c;
}

tern_tensor *tern_argmax(tern_scope *scope, tern_tensor *x, int dim, bool keep)
{
    return argmax_choose(scope, __func__, TERN__ARGMAX, x, dim, keep, false).index;
}

tern_tensor *tern_argmin(tern_scope *scope, tern_tensor *x, int dim, bool keep)
{
    return argmax_choose(scope, __func__, TERN__ARGMIN, x, dim, keep, false).index;
}

tern_tensor *tern_max_dim(tern_scope *scope, tern_tensor *x, int dim, bool keep, tern_tensor **index)
{
    choice c = argmax_choose(scope, __func__, TERN__ARGMAX, x, dim, keep, true);
    if (index) *index = c.index;
    return c.value;
}

tern_tensor *tern_min_dim(tern_scope *scope, tern_tensor *x, int dim, bool keep, tern_tensor **index)
{
    choice c = argmax_choose(scope, __func__, TERN__ARGMIN, x, dim, keep, true);
    if (index) *index = c.index;
    return c.value;
}

/* ---- several ---- */

/* Resolves `dim`; a scalar counts as one dimension of one element. -1 on failure. */
static int topk_check(tern_scope *scope, const tern_tensor *x, int64_t k, int dim)
{
    char shape[TERN__SHAPE_TEXT];
    bool is_scalar = x->view.ndim == 0 && (dim == 0 || dim == -1);
    int d = is_scalar ? 0 : tern__dim_of(scope, "tern_topk", x, dim);
    int64_t size = is_scalar ? 1 : d < 0 ? 0 : x->view.shape[d];
    if (d < 0 || (k >= 0 && k <= size)) return d;
    tern__scope_fail(scope, "tern_topk", TERN_E_RANGE,
                     "topk: expected a k in [0, %lld] for dimension %d of %s, got %lld", (long long)size, dim,
                     tern__shape_text(&x->view, shape), (long long)k);
    return -1;
}

static choice topk_choose(tern_scope *scope, tern_tensor *x, const tern__topk_attr *attr)
{
    choice c = {NULL, NULL}, none = c;
    tern__dim_attr dim = {attr->dim};
    tern__view shape = x->view;
    if (shape.ndim > 0) shape.shape[attr->dim] = attr->k;
    c.index = tern__result(scope, TERN_I64, TERN__PLAIN, shape.ndim, shape.shape);
    c.value = tern__result(scope, x->view.dtype, TERN__PLAIN, shape.ndim, shape.shape);
    if (!c.index || !c.value) return none;
    tern__call call = {
        .kernel = TERN__TOPK, .in = {&x->view}, .out = {&c.value->view, &c.index->view}, .attr = attr};
    if (tern__view_count(&c.index->view) > 0 && attr->k > 0 && !tern__run(scope, &call)) return none;
    tern__node *node = tern__record(scope, "topk", argmax_gradient, c.value, 1, &x);
    tern__save(node, 0, c.index);
    tern__save_attr(scope, node, &dim, sizeof(dim));
    return c;
}

tern_tensor *tern_topk(tern_scope *scope, tern_tensor *x, int64_t k, int dim, bool largest,
                       tern_tensor **index)
{
    choice c = {NULL, NULL};
    if (TERN__ENTER(scope, __func__, 1, &x) && (dim = topk_check(scope, x, k, dim)) >= 0 &&
        (x = tern__plain(scope, x)))
        c = topk_choose(scope, x, &(tern__topk_attr){dim, k, largest});
    if (index) *index = c.index;
    return c.value;
}
