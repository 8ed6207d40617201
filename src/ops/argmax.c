/* argmax.c - the largest or smallest element along a dimension, and its index. Only that element gets the
 * gradient. */
#include "kernels/lines.h"
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
