#include "ops/matmul.h"
#include "ops/pointwise.h"

/* dw = dy^T x, and db with it: a GPU's product reads dy anyhow, and a kernel less is started. */
static int gradients_at_once(tern_scope *scope, tern__node *node, const tern__view *turned,
                             const tern__view *x)
{
    tern__call call = {.kernel = TERN__MATMUL, .in = {turned, x}};
    call.out[0] = tern__grad_open(scope, node, 1, &call.add[0]);
    call.out[1] = call.out[0] ? tern__grad_open(scope, node, 2, &call.add[1]) : NULL;
    if (!call.out[1] || !tern__run(scope, &call)) return scope->error.code;
    int status = tern__grad_done(scope, node, 2);
    return status ? status : tern__grad_done(scope, node, 1);
}

static int parameter_gradients(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node), *x = &node->saved[0].view;
    bool weight = tern__wants(node, 1), bias = tern__wants(node, 2);
    tern__view turned = tern__transposed(dy);
    if (weight && bias && scope->here->backend && dy->ndim == 2)
        return gradients_at_once(scope, node, &turned, x);
    int status = bias ? tern__sum_into(scope, node, 2, dy) : TERN_OK;
    return status || !weight ? status : tern__matmul_grad(scope, node, 1, &turned, x);
}

static int gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node), *w = &node->saved[1].view;
    int status = parameter_gradients(scope, node);
    if (!status && tern__wants(node, 0)) status = tern__matmul_grad(scope, node, 0, dy, w);
    return status;
}

static bool shapes_fit(tern_scope *scope, const tern_tensor *x, const tern_tensor *w, const tern_tensor *b)
{
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    const tern__view *xv = &x->view;
    bool fit = xv->ndim > 0 && w->view.ndim == 2 && xv->shape[xv->ndim - 1] == w->view.shape[1];
    if (!fit) {
        tern__scope_fail(scope, "tern_linear", TERN_E_SHAPE, "linear%s: weight is %s but input is %s",
                         tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                         tern__shape_text(xv, xs));
        return false;
    }
    if (!b || (b->view.ndim == 1 && b->view.shape[0] == w->view.shape[0])) return true;
    tern__scope_fail(scope, "tern_linear", TERN_E_SHAPE, "linear%s: weight is %s but bias is %s",
                     tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                     tern__shape_text(&b->view, bs));
    return false;
}

static bool dtypes_fit(tern_scope *scope, tern_dtype x, const tern_tensor *w, const tern_tensor *b)
{
    char layer[TERN__LAYER_TEXT];
    tern_dtype weight = w->view.dtype, bias = b ? b->view.dtype : weight;
    if (x == weight && bias == weight && weight != TERN_BOOL) return true;
    tern__scope_fail(scope, "tern_linear", TERN_E_DTYPE, "linear%s: weight is %s but %s is %s",
                     tern__layer_text(w, layer), tern_dtype_name(weight), x == weight ? "bias" : "input",
                     tern_dtype_name(x == weight ? bias : x));
    return false;
}

/* x (.., in) of at least two dimensions. */
static tern_tensor *linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias)
{
    if (!(x = tern__matrices(scope, x)) || !(weight = tern__matrices(scope, weight))) return NULL;
    if (bias && !(bias = tern__plain(scope, bias))) return NULL;
    tern__view shape = x->view, turned = tern__transposed(&weight->view);
    shape.shape[shape.ndim - 1] = weight->view.shape[0];
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, shape.ndim, shape.shape);
    if (!y || !tern__matmul(scope, &y->view, &x->view, &turned, bias ? &bias->view : NULL, false))
        return NULL;
    tern__node *node = tern__record(scope, "linear", gradient, y, 3, (tern_tensor *[]){x, weight, bias});
    if (node && tern__wants(node, 1)) tern__save(node, 0, x);
    if (node && tern__wants(node, 0)) tern__save(node, 1, weight);
    return y;
}

tern_tensor *tern_linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias)
{
    if (!TERN__ENTER(scope, __func__, 2, &x, &weight, &bias)) return NULL;
    if (!shapes_fit(scope, x, weight, bias) || !dtypes_fit(scope, x->view.dtype, weight, bias)) return NULL;
    if (x->view.ndim > 1) return linear(scope, x, weight, bias);
    tern_tensor *row = tern_reshape(scope, x, 2, (int64_t[]){1, -1});
    tern_tensor *y = row ? linear(scope, row, weight, bias) : NULL;
    return y ? tern_reshape(scope, y, 1, (int64_t[]){-1}) : NULL;
}
