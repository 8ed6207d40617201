#include "autograd/autograd.h"

#include <tern/ops.h>

/* dx overwrites dy where nobody else needs it. */
static int gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node), *y = &node->saved[0].view;
    tern__call call = {.kernel = TERN__RELU_GRAD, .in = {dy, y}};
    if (tern__owns_dy(node)) {
        call.out[0] = dy;
        return tern__run(scope, &call) ? tern__grad_give(scope, node, 0, dy) : scope->error.code;
    }
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

tern_tensor *tern_relu(tern_scope *scope, tern_tensor *x)
{
    if (!tern__op_enter(scope, "tern_relu", 1, x)) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, x->view.layout, x->view.ndim, x->view.shape);
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__RELU, .in = {&x->view}, .out = {&y->view}};
    if (!tern__run(scope, &call)) return NULL;
    tern__save(tern__record(scope, "relu", gradient, y, 1, &x), 0, y);
    return y;
}
