#include "kernels/broadcast.h"
#include "ops/broadcast.h"
#include "ops/ops.h"

/* dy, times 1 / count for a mean, everywhere. */
static int gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__SCALE, .attr = node->attr};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0]) return scope->error.code;
    tern__view dy = tern__broadcast_view(tern__dy(node), call.out[0]->ndim, call.out[0]->shape);
    call.in[0] = &dy;
    return tern__run(scope, &call) ? tern__grad_done(scope, node, 0) : scope->error.code;
}

static tern_tensor *sum(tern_scope *scope, const char *op, tern_tensor *x, double factor)
{
    const tern__factor_attr attr = {factor};
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, 0, NULL);
    if (!y) return NULL;
    tern__view seen = tern__broadcast_view(&y->view, x->view.ndim, x->view.shape);
    tern__call call = {.kernel = TERN__SUM, .in = {&x->view}, .out = {&seen}, .attr = &attr};
    if (!tern__run(scope, &call)) return NULL;
    tern__save_attr(scope, tern__record(scope, op, gradient, y, 1, &x), &attr, sizeof(attr));
    return y;
}

tern_tensor *tern_sum(tern_scope *scope, tern_tensor *x)
{
    return tern__op_enter(scope, __func__, 1, x) ? sum(scope, "sum", x, 1) : NULL;
}

tern_tensor *tern_mean(tern_scope *scope, tern_tensor *x)
{
    if (!tern__op_enter(scope, __func__, 1, x)) return NULL;
    return sum(scope, "mean", x, 1 / (double)tern__view_count(&x->view));
}
