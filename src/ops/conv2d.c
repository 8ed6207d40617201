#include "kernels/conv.h"
#include "base/opts.h"
#include "ops/ops.h"

#include <stdio.h>

tern_conv2d_opts tern_conv2d_defaults(void)
{
    return (tern_conv2d_opts){
        .size = sizeof(tern_conv2d_opts), .stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .bias = true};
}

static int weight_gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *x = &node->saved[0].view;
    tern__call call = {.kernel = TERN__CONV2D_WEIGHT_GRAD, .in = {tern__dy(node), x}, .attr = node->attr};
    for (int i = 1; i <= 2; i++)
        if (tern__wants(node, i)) call.out[i - 1] = tern__grad_open(scope, node, i, &call.add[i - 1]);
    if (!tern__run(scope, &call)) return scope->error.code;
    for (int i = 2; i >= 1; i--)
        if (tern__wants(node, i) && tern__grad_done(scope, node, i)) return scope->error.code;
    return TERN_OK;
}

/* The weight first: its bucket can be reduced while the data's gradient is computed. */
static int gradient(tern_scope *scope, tern__node *node)
{
    bool weight = tern__wants(node, 1) || tern__wants(node, 2);
    if (weight && weight_gradient(scope, node)) return scope->error.code;
    if (!tern__wants(node, 0)) return TERN_OK;
    tern__call call = {
        .kernel = TERN__CONV2D_DATA_GRAD, .in = {tern__dy(node), &node->saved[1].view}, .attr = node->attr};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

/* ---- the shape rule ---- */

static int read_opts(tern_scope *scope, const tern_conv2d_opts *opts, tern__conv_attr *attr)
{
    tern_error err = {0};
    tern_conv2d_opts o = tern_conv2d_defaults();
    if (tern__opts_read(&o, sizeof(o), opts, "tern_conv2d", &err)) return tern__scope_fail_with(scope, &err);
    *attr = (tern__conv_attr){.groups = o.groups};
    bool fit = o.groups >= 1;
    for (int d = 0; d < 2; d++) {
        attr->stride[d] = o.stride[d];
        attr->padding[d] = o.padding[d];
        attr->dilation[d] = o.dilation[d];
        fit &= o.stride[d] >= 1 && o.padding[d] >= 0 && o.dilation[d] >= 1;
    }
    if (fit) return TERN_OK;
    return tern__scope_fail(scope, "tern_conv2d", TERN_E_RANGE,
                            "conv2d: expected stride, dilation and groups of at least 1 and padding of at "
                            "least 0, got stride (%lld, %lld), dilation (%lld, %lld), groups %lld, padding "
                            "(%lld, %lld)",
                            (long long)o.stride[0], (long long)o.stride[1], (long long)o.dilation[0],
                            (long long)o.dilation[1], (long long)o.groups, (long long)o.padding[0],
                            (long long)o.padding[1]);
}

static bool dtypes_fit(const tern_tensor *x, const tern_tensor *w, const tern_tensor *b)
{
    tern_dtype dtype = w->view.dtype;
    return (dtype == TERN_F32 || dtype == TERN_F64) && x->view.dtype == dtype &&
           (!b || b->view.dtype == dtype);
}

#define GROUPS_TEXT 40

static const char *groups_text(int64_t groups, char text[GROUPS_TEXT])
{
    snprintf(text, GROUPS_TEXT, groups == 1 ? "" : ", in %lld groups", (long long)groups);
    return text;
}

static int check(tern_scope *scope, const tern_tensor *x, const tern_tensor *w, const tern_tensor *b,
                 const tern__conv_attr *attr)
{
    const tern__view *xv = &x->view, *wv = &w->view;
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    char groups[GROUPS_TEXT];
    if (xv->ndim != 4 || wv->ndim != 4 || xv->shape[1] != wv->shape[1] * attr->groups ||
        wv->shape[0] % attr->groups)
        return tern__scope_fail(scope, "tern_conv2d", TERN_E_SHAPE,
                                "conv2d%s: weight is %s but input is %s%s", tern__layer_text(w, layer),
                                tern__shape_text(wv, ws), tern__shape_text(xv, xs),
                                groups_text(attr->groups, groups));
    if (b && (b->view.ndim != 1 || b->view.shape[0] != wv->shape[0]))
        return tern__scope_fail(scope, "tern_conv2d", TERN_E_SHAPE, "conv2d%s: weight is %s but bias is %s",
                                tern__layer_text(w, layer), tern__shape_text(wv, ws),
                                tern__shape_text(&b->view, bs));
    if (!dtypes_fit(x, w, b))
        return tern__scope_fail(scope, "tern_conv2d", TERN_E_DTYPE,
                                "conv2d%s: expected f32 or f64 alike, got weight %s, input %s, bias %s",
                                tern__layer_text(w, layer), tern_dtype_name(wv->dtype),
                                tern_dtype_name(xv->dtype), b ? tern_dtype_name(b->view.dtype) : "none");
    return TERN_OK;
}

/* Fills `shape` with the output's; an empty one is an error. */
static int output_shape(tern_scope *scope, const tern_tensor *x, const tern_tensor *w,
                        const tern__conv_attr *attr, int64_t shape[4])
{
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    bool empty = tern__view_count(&x->view) == 0 || tern__view_count(&w->view) == 0;
    shape[0] = x->view.shape[0];
    shape[1] = w->view.shape[0];
    for (int d = 0; d < 2; d++) {
        int64_t reach = attr->dilation[d] * (w->view.shape[2 + d] - 1) + 1;
        int64_t room = x->view.shape[2 + d] + 2 * attr->padding[d] - reach;
        empty |= room < 0;
        shape[2 + d] = room / attr->stride[d] + 1;
    }
    if (!empty) return TERN_OK;
    return tern__scope_fail(scope, "tern_conv2d", TERN_E_SHAPE,
                            "conv2d%s: nothing to compute: weight is %s, input %s, padding (%lld, %lld), "
                            "dilation (%lld, %lld)",
                            tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                            tern__shape_text(&x->view, xs), (long long)attr->padding[0],
                            (long long)attr->padding[1], (long long)attr->dilation[0],
                            (long long)attr->dilation[1]);
}

tern_tensor *tern_conv2d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                         const tern_conv2d_opts *opts)
{
    tern__conv_attr attr;
    int64_t shape[4];
    if (!tern__op_enter(scope, "tern_conv2d", bias ? 3 : 2, x, weight, bias)) return NULL;
    if (read_opts(scope, opts, &attr) || check(scope, x, weight, bias, &attr) ||
        output_shape(scope, x, weight, &attr, shape))
        return NULL;
    tern__layout layout = shape[1] % 16 ? TERN__PLAIN : TERN__BLOCKED16;
    tern_tensor *y = tern__result(scope, x->view.dtype, layout, 4, shape);
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__CONV2D,
                       .in = {&x->view, &weight->view, bias ? &bias->view : NULL},
                       .out = {&y->view},
                       .attr = &attr};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "conv2d", gradient, y, 3, (tern_tensor *[]){x, weight, bias});
    tern__save(node, 0, x);
    tern__save(node, 1, weight);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    return y;
}
