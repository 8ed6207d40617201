#include "kernels/matmul.h"
#include "kernels/pointwise.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"

/* The inputs, and the saved tensors; the result is saved if it has a ReLU. A weight is (out, in), or the
 * caller's (in, out), "turned". */
enum { X, WEIGHT, BIAS, INPUTS, ADDED = BIAS };
enum { SAVED_X, SAVED_WEIGHT, SAVED_Y };

/* From so many outputs on, making x again takes less than a hundredth of the products' time. */
#define WIDE 512

static bool is_turned(const tern__node *node)
{
    return node->attr != NULL;
}

/* ---- gradient: dz is the gradient of the product plus bias, before the ReLU ---- */

static int parameter_gradients(tern_scope *scope, tern__node *node, const tern__view *dz)
{
    int status = tern__wants(node, BIAS) ? tern__sum_into(scope, node, BIAS, dz) : TERN_OK;
    if (status || !tern__wants(node, WEIGHT)) return status;
    const tern__view *x = &node->saved[SAVED_X].view;
    tern__view columns = tern__transposed(is_turned(node) ? x : dz);
    return tern__matmul_grad(scope, node, WEIGHT, &columns, is_turned(node) ? dz : x);
}

static int gradients(tern_scope *scope, tern__node *node, const tern__view *dz)
{
    const tern__view *weight = &node->saved[SAVED_WEIGHT].view;
    int status = parameter_gradients(scope, node, dz);
    if (status || !tern__wants(node, X)) return status;
    tern__view w = is_turned(node) ? tern__transposed(weight) : *weight;
    status = tern__matmul_grad(scope, node, X, dz, &w);
    return status;
}

/* ---- all gradients in one call of a device's kernel, which saves launches ---- */

/* False if x is its own weight: then one gradient is added to the other, and the kernel cannot do that. */
static bool are_at_once(const tern_scope *scope, const tern__node *node)
{
    return scope->here->backend && !is_turned(node) && tern__dy(node)->ndim == 2 &&
           tern__wants(node, WEIGHT) && node->in[X] != node->in[WEIGHT];
}

static int relu_gradient(tern_scope *scope, tern__node *node);

/* Writing the gradient of a ReLU's result, this op applies the ReLU's mask (cuts it) at once: that is once
 * per element, while the layer before would do it for each tile of its products. Gradients that are added
 * later need not be cut. */
static bool cuts(const tern__node *node, const tern__call *call)
{
    const tern__node *before = call->out[X] ? node->in[X]->node : NULL;
    return before && !call->add[X] && before->gradient == relu_gradient;
}

/* y: the result, if it has a ReLU and its gradient is not cut yet; else NULL. */
static int gradients_at_once(tern_scope *scope, tern__node *node, const tern__view *y)
{
    tern__linear_grad_attr attr = {0};
    tern__call call = {
        .kernel = TERN__LINEAR_GRAD, .in = {tern__dy(node), &node->saved[SAVED_X].view}, .attr = &attr};
    call.in[2] = tern__wants(node, X) ? &node->saved[SAVED_WEIGHT].view : NULL;
    call.in[3] = y;
    for (int i = 0; i < INPUTS; i++) {
        if (!tern__wants(node, i)) continue;
        call.out[i] = tern__grad_open(scope, node, i, &call.add[i]);
        if (!call.out[i]) return scope->error.code;
    }
    attr.is_relus = cuts(node, &call);
    bool is_empty = tern__view_count(tern__dy(node)) == 0;
    bool is_done = is_empty ? tern__fill_zeros(scope, &call) : tern__run(scope, &call);
    int status = is_done ? TERN_OK : scope->error.code;
    if (attr.is_relus) node->in[X]->grad_is_cut = true;
    for (int i = INPUTS - 1; i >= 0 && !status; i--)
        if (call.out[i]) status = tern__grad_done(scope, node, i);
    return status;
}

/* ---- with and without a ReLU ---- */

static int linear_gradient(tern_scope *scope, tern__node *node)
{
    if (are_at_once(scope, node)) return gradients_at_once(scope, node, NULL);
    return gradients(scope, node, tern__dy(node));
}

/* dz overwrites dy if nothing else needs it. */
static int relu_gradient(tern_scope *scope, tern__node *node)
{
    static const tern__pointwise_attr none = {{0}};
    const tern__view *dy = tern__dy(node), *y = &node->saved[SAVED_Y].view;
    if (are_at_once(scope, node)) return gradients_at_once(scope, node, node->out->grad_is_cut ? NULL : y);
    bool in_place = tern__owns_dy(node) && dy->layout == y->layout;
    tern__saved beside = in_place ? (tern__saved){0} : tern__temporary(scope, y);
    if (!in_place && !beside.storage) return scope->error.code;
    const tern__view *dz = in_place ? dy : &beside.view;
    tern__call call = {.kernel = TERN__RELU_GRAD, .in = {dy, y}, .out = {dz}, .attr = &none};
    int status = tern__run(scope, &call) ? gradients(scope, node, dz) : scope->error.code;
    tern__saved_drop(&beside);
    return status;
}

/* ---- the op ---- */

static bool linear_shapes_fit(tern_scope *scope, const tern_tensor *x, const tern_tensor *w,
                              const tern_tensor *b, bool turned)
{
    int in = turned ? 0 : 1, out = 1 - in;
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    const tern__view *xv = &x->view;
    bool fit = xv->ndim > 0 && w->view.ndim == 2 && xv->shape[xv->ndim - 1] == w->view.shape[in];
    if (!fit) {
        tern__scope_fail(scope, "tern_linear", TERN_E_SHAPE, "linear%s: weight is %s but input is %s",
                         tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                         tern__shape_text(xv, xs));
        return false;
    }
    if (!b || (b->view.ndim == 1 && b->view.shape[0] == w->view.shape[out])) return true;
    tern__scope_fail(scope, "tern_linear", TERN_E_SHAPE, "linear%s: weight is %s but bias is %s",
                     tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                     tern__shape_text(&b->view, bs));
    return false;
}

static bool linear_dtypes_fit(tern_scope *scope, tern_dtype x, const tern_tensor *w, const tern_tensor *b,
                              bool relu)
{
    char layer[TERN__LAYER_TEXT];
    tern_dtype weight = w->view.dtype, bias = b ? b->view.dtype : weight;
    bool same = x == weight && bias == weight && weight != TERN_BOOL;
    if (same && (!relu || tern__dtype_is_float(x))) return true;
    if (same) {
        tern__scope_fail(scope, "tern_linear", TERN_E_DTYPE,
                         "linear%s: expected floating point before a relu, got %s",
                         tern__layer_text(w, layer), tern_dtype_name(x));
        return false;
    }
    tern__scope_fail(scope, "tern_linear", TERN_E_DTYPE, "linear%s: weight is %s but %s is %s",
                     tern__layer_text(w, layer), tern_dtype_name(weight), x == weight ? "bias" : "input",
                     tern_dtype_name(x == weight ? bias : x));
    return false;
}

/* x is (.., in) with at least two dimensions. */
static tern_tensor *linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                           bool relu, bool turned)
{
    static const bool turned_attr = true;
    if (!(x = tern__matrices(scope, x)) || !(weight = tern__matrices(scope, weight))) return NULL;
    if (bias && !(bias = tern__plain(scope, bias))) return NULL;
    tern__view shape = x->view, w = turned ? weight->view : tern__transposed(&weight->view);
    shape.shape[shape.ndim - 1] = w.shape[1];
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, shape.ndim, shape.shape);
    if (!y || !tern__matmul_act(scope, &y->view, &x->view, &w, bias ? &bias->view : NULL, relu)) return NULL;
    tern__node *node = tern__record(scope, "linear", relu ? relu_gradient : linear_gradient, y, INPUTS,
                                    (tern_tensor *[]){x, weight, bias});
    bool is_wide = shape.shape[shape.ndim - 1] >= WIDE;
    if (node && tern__wants(node, WEIGHT)) (is_wide ? tern__save_operand : tern__save)(node, SAVED_X, x);
    if (node && tern__wants(node, X)) tern__save(node, SAVED_WEIGHT, weight);
    if (relu) tern__save(node, SAVED_Y, y);
    if (node && turned) node->attr = &turned_attr;
    return y;
}

/* The part that both functions share, after their inputs were checked. */
static tern_tensor *linear_run(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                               bool relu, bool turned)
{
    if (!linear_shapes_fit(scope, x, weight, bias, turned) ||
        !linear_dtypes_fit(scope, x->view.dtype, weight, bias, relu))
        return NULL;
    if (x->view.ndim > 1) return linear(scope, x, weight, bias, relu, turned);
    tern_tensor *row = tern_reshape(scope, x, 2, (int64_t[]){1, -1});
    tern_tensor *y = row ? linear(scope, row, weight, bias, relu, turned) : NULL;
    return y ? tern_reshape(scope, y, 1, (int64_t[]){-1}) : NULL;
}

tern_tensor *tern_linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias)
{
    return TERN__ENTER(scope, __func__, 2, &x, &weight, &bias)
               ? linear_run(scope, x, weight, bias, false, false)
               : NULL;
}

tern_tensor *tern_linear_act(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                             bool relu)
{
    return TERN__ENTER(scope, __func__, 2, &x, &weight, &bias)
               ? linear_run(scope, x, weight, bias, relu, false)
               : NULL;
}

tern_tensor *tern__linear_turned(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias)
{
    return TERN__ENTER(scope, "tern_linear", 2, &x, &weight, &bias)
               ? linear_run(scope, x, weight, bias, false, true)
               : NULL;
}

/* ---- a product that is added ---- */

/* y's gradient is that of the sum, and gets its memory. */
static int linear_add_gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node);
    int status = TERN_OK;
    if (tern__wants(node, WEIGHT)) {
        tern__view columns = tern__transposed(dy);
        status = tern__matmul_grad(scope, node, WEIGHT, &columns, &node->saved[SAVED_X].view);
    }
    if (!status && tern__wants(node, X))
        status = tern__matmul_grad(scope, node, X, dy, &node->saved[SAVED_WEIGHT].view);
    return status || !tern__wants(node, ADDED) ? status : tern__grad_give(scope, node, ADDED, dy);
}

tern_tensor *tern__linear_add(tern_scope *scope, tern_tensor *y, tern_tensor *x, tern_tensor *weight)
{
    if (!TERN__ENTER(scope, "tern_linear", 3, &y, &x, &weight)) return NULL;
    x = tern__cast(scope, x, y->view.dtype);
    weight = tern__cast(scope, weight, y->view.dtype);
    if (!x || !weight || !(x = tern__matrices(scope, x)) || !(weight = tern__matrices(scope, weight)))
        return NULL;
    tern__view w = tern__transposed(&weight->view);
    if (!tern__matmul(scope, &y->view, &x->view, &w, true)) return NULL;
    tern_tensor *sum = tern__result_view(scope, y, &y->view);
    tern__node *node = sum ? tern__record(scope, "linear_add", linear_add_gradient, sum, INPUTS,
                                          (tern_tensor *[]){x, weight, y})
                           : NULL;
    if (node && tern__wants(node, WEIGHT)) tern__save(node, SAVED_X, x);
    if (node && tern__wants(node, X)) tern__save(node, SAVED_WEIGHT, weight);
    return sum;
}
