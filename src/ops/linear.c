#include "ops/ops.h"

static int gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node), *x = &node->saved[0].view, *w = &node->saved[1].view;
    if (tern__wants(node, 1) || tern__wants(node, 2)) {
        tern__call call = {.kernel = TERN__LINEAR_WEIGHT_GRAD, .in = {dy, x}};
        for (int i = 1; i <= 2; i++)
            if (tern__wants(node, i)) call.out[i - 1] = tern__grad_open(scope, node, i, &call.add[i - 1]);
        if (!tern__run(scope, &call)) return scope->error.code;
        for (int i = 2; i >= 1; i--)
            if (tern__wants(node, i) && tern__grad_done(scope, node, i)) return scope->error.code;
    }
    if (!tern__wants(node, 0)) return TERN_OK;
    tern__call call = {.kernel = TERN__LINEAR_DATA_GRAD, .in = {dy, w}};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

static bool shapes_fit(tern_scope *scope, const tern_tensor *x, const tern_tensor *w, const tern_tensor *b)
{
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    bool fit = x->view.ndim == 2 && w->view.ndim == 2 && x->view.shape[1] == w->view.shape[1];
    if (!fit) {
        tern__scope_fail(scope, "tern_linear", TERN_E_SHAPE, "linear%s: weight is %s but input is %s",
                         tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                         tern__shape_text(&x->view, xs));
        return false;
    }
    if (b && (b->view.ndim != 1 || b->view.shape[0] != w->view.shape[0])) {
        tern__scope_fail(scope, "tern_linear", TERN_E_SHAPE, "linear%s: weight is %s but bias is %s",
                         tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                         tern__shape_text(&b->view, bs));
        return false;
    }
    if (x->view.dtype != w->view.dtype || (b && b->view.dtype != w->view.dtype)) {
        tern__scope_fail(scope, "tern_linear", TERN_E_DTYPE, "linear%s: weight is %s but input is %s",
                         tern__layer_text(w, layer), tern_dtype_name(w->view.dtype),
                         tern_dtype_name(x->view.dtype));
        return false;
    }
    return true;
}

tern_tensor *tern_linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias)
{
    if (!tern__op_enter(scope, "tern_linear", bias ? 3 : 2, x, weight, bias)) return NULL;
    if (!shapes_fit(scope, x, weight, bias)) return NULL;
    x = tern__plain(scope, x);
    if (!x) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, 2,
                                  (int64_t[]){x->view.shape[0], weight->view.shape[0]});
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__LINEAR,
                       .in = {&x->view, &weight->view, bias ? &bias->view : NULL},
                       .out = {&y->view}};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "linear", gradient, y, 3, (tern_tensor *[]){x, weight, bias});
    tern__save(node, 0, x);
    tern__save(node, 1, weight);
    return y;
}
