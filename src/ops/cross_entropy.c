#include "autograd/autograd.h"

#include <tern/ops.h>

static int gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *logp = &node->saved[0].view, *label = &node->saved[1].view;
    tern__call call = {.kernel = TERN__CROSS_ENTROPY_GRAD, .in = {tern__dy(node), logp, label}};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

static bool shapes_fit(tern_scope *scope, const tern__view *x, const tern__view *label)
{
    char xs[TERN__SHAPE_TEXT], ls[TERN__SHAPE_TEXT];
    if (x->ndim != 2 || label->ndim != 1 || x->shape[0] != label->shape[0] || x->shape[0] == 0) {
        tern__scope_fail(scope, "tern_cross_entropy", TERN_E_SHAPE,
                         "cross_entropy: expected input (N, C) and label (N), got %s and %s",
                         tern__shape_text(x, xs), tern__shape_text(label, ls));
        return false;
    }
    if (label->dtype == TERN_I64) return true;
    tern__scope_fail(scope, "tern_cross_entropy", TERN_E_DTYPE,
                     "cross_entropy: expected labels of i64, got %s", tern_dtype_name(label->dtype));
    return false;
}

tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label)
{
    if (!tern__op_enter(scope, "tern_cross_entropy", 2, x, label)) return NULL;
    if (!shapes_fit(scope, &x->view, &label->view)) return NULL;
    tern_tensor *loss = tern__result(scope, x->view.dtype, TERN__PLAIN, 0, NULL);
    tern_tensor *logp = loss ? tern__result(scope, x->view.dtype, TERN__PLAIN, 2, x->view.shape) : NULL;
    if (!logp) return NULL;
    tern__call call = {
        .kernel = TERN__CROSS_ENTROPY, .in = {&x->view, &label->view}, .out = {&loss->view, &logp->view}};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "cross_entropy", gradient, loss, 1, &x);
    tern__save(node, 0, logp);
    tern__save(node, 1, label);
    return loss;
}
