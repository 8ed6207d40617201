#include "ops/ops.h"

static int gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__MSE_LOSS_GRAD,
                       .in = {tern__dy(node), &node->saved[0].view, &node->saved[1].view}};
    for (int i = 0; i < 2; i++) {
        if (!tern__wants(node, i)) continue;
        call.out[i] = tern__grad_open(scope, node, i, &call.add[i]);
        if (!call.out[i]) return scope->error.code;
    }
    if (!tern__run(scope, &call)) return scope->error.code;
    for (int i = 0; i < 2; i++)
        if (call.out[i] && tern__grad_done(scope, node, i)) return scope->error.code;
    return TERN_OK;
}

static bool fits(tern_scope *scope, const tern__view *x, const tern__view *target)
{
    char xs[TERN__SHAPE_TEXT], ts[TERN__SHAPE_TEXT];
    if (!tern__view_same_shape(x, target) || tern__view_count(x) == 0) {
        tern__scope_fail(scope, "tern_mse_loss", TERN_E_SHAPE,
                         "mse_loss: expected input and target of one shape, not empty; got %s and %s",
                         tern__shape_text(x, xs), tern__shape_text(target, ts));
        return false;
    }
    if (x->dtype == target->dtype) return true;
    tern__scope_fail(scope, "tern_mse_loss", TERN_E_DTYPE, "mse_loss: input is %s but target is %s",
                     tern_dtype_name(x->dtype), tern_dtype_name(target->dtype));
    return false;
}

tern_tensor *tern_mse_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target)
{
    if (!tern__op_enter(scope, __func__, 2, x, target) || !fits(scope, &x->view, &target->view)) return NULL;
    if (x->view.layout != target->view.layout) {
        x = tern__plain(scope, x);
        target = x ? tern__plain(scope, target) : NULL;
        if (!target) return NULL;
    }
    tern_tensor *loss = tern__result(scope, x->view.dtype, TERN__PLAIN, 0, NULL);
    if (!loss) return NULL;
    tern__call call = {.kernel = TERN__MSE_LOSS, .in = {&x->view, &target->view}, .out = {&loss->view}};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "mse_loss", gradient, loss, 2, (tern_tensor *[]){x, target});
    tern__save(node, 0, x);
    tern__save(node, 1, target);
    return loss;
}
