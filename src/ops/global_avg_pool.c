#include "autograd/autograd.h"

#include <tern/ops.h>

static int gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__GLOBAL_AVG_POOL_GRAD, .in = {tern__dy(node)}};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

static bool shape_fits(tern_scope *scope, const tern__view *x)
{
    bool fit = x->ndim >= 3;
    for (int d = 2; d < x->ndim; d++) fit = fit && x->shape[d] > 0;
    if (fit) return true;
    char shape[TERN__SHAPE_TEXT];
    tern__scope_fail(scope, "tern_global_avg_pool", TERN_E_SHAPE,
                     "global_avg_pool: expected (N, C, H, W) with at least one position, got %s",
                     tern__shape_text(x, shape));
    return false;
}

tern_tensor *tern_global_avg_pool(tern_scope *scope, tern_tensor *x)
{
    if (!tern__op_enter(scope, "tern_global_avg_pool", 1, x) || !shape_fits(scope, &x->view)) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, 2, x->view.shape);
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__GLOBAL_AVG_POOL, .in = {&x->view}, .out = {&y->view}};
    if (!tern__run(scope, &call)) return NULL;
    tern__record(scope, "global_avg_pool", gradient, y, 1, &x);
    return y;
}
