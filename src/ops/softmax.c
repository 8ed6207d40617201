/* softmax.c - softmax and its logarithm along one dimension. Both gradients need only the result. */
#include "kernels/lines.h"
#include "ops/ops.h"

typedef struct form {
    const char *name;
    tern__kernel forward, gradient;
} form;

static const form softmax_form = {"softmax", TERN__SOFTMAX, TERN__SOFTMAX_GRAD};
static const form log_softmax_form = {"log_softmax", TERN__LOG_SOFTMAX, TERN__LOG_SOFTMAX_GRAD};

typedef struct record {
    tern__dim_attr attr;
    const form *form;
} record;

/* Overwrites dy if nothing else holds it. */
static int softmax_gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    const tern__view *dy = tern__dy(node);
    tern__call call = {.kernel = r->form->gradient, .in = {dy, &node->saved[0].view}, .attr = &r->attr};
    bool over = tern__owns_dy(node);
    call.out[0] = over ? dy : tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return over ? tern__grad_give(scope, node, 0, dy) : tern__grad_done(scope, node, 0);
}

/* Resolves `dim`; a scalar counts as one dimension of one element. -1 on failure. */
static int softmax_check(tern_scope *scope, const char *func, const form *f, const tern_tensor *x, int dim)
{
    if (!tern__dtype_is_float(x->view.dtype)) {
        tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected floating point, got %s", f->name,
                         tern_dtype_name(x->view.dtype));
        return -1;
    }
    return x->view.ndim == 0 && (dim == 0 || dim == -1) ? 0 : tern__dim_of(scope, func, x, dim);
}

static tern_tensor *softmax(tern_scope *scope, const char *func, const form *f, tern_tensor *x, int dim)
{
    if (!TERN__ENTER(scope, func, 1, &x) || (dim = softmax_check(scope, func, f, x, dim)) < 0) return NULL;
    if (!(x = tern__plain(scope, x))) return NULL;
    record r = {{dim}, f};
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, x->view.ndim, x->view.shape);
    tern__call call = {.kernel = f->forward, .in = {&x->view}, .out = {y ? &y->view : NULL}, .attr = &r.attr};
    if (!y || !tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, f->name, softmax_gradient, y, 1, &x);
    tern__save(node, 0, y);
    tern__save_attr(scope, node, &r, sizeof(r));
    return y;
}

tern_tensor *tern_softmax(tern_scope *scope, tern_tensor *x, int dim)
{
    return softmax(scope, __func__, &softmax_form, x, dim);
}

tern_tensor *tern_log_softmax(tern_scope *scope, tern_tensor *x, int dim)
{
    return softmax(scope, __func__, &log_softmax_form, x, dim);
}
