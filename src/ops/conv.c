/* conv.c - convolutions and transposed convolutions over one, two or three spatial dimensions, by three
 * kernels.
 *
 * A transposed convolution is the gradient of a convolution from y to x: its forward is the kernel of that
 * one's data gradient, its data gradient the convolution itself, and its weight gradient the same kernel with
 * x and dy in each other's places. What is 1-d is 2-d with a height of 1, which both layouts are as they
 * stand. */
#include "kernels/conv.h"
#include "kernels/reduce.h"
#include "ops/ops.h"

#include <tern/conv.h>

#include <stdio.h>

/* The inputs; x and weight are saved in the slots of the same numbers. */
enum { X, WEIGHT, BIAS };

typedef struct conv {
    const char *func, *op; /* "tern_conv1d", "conv1d": for errors */
    int spatial;           /* number of spatial dimensions        */
    bool transposed;
    tern__conv_attr attr; /* the last `spatial` numbers are used; padding: on the left */
    int64_t output_padding[3];
    int64_t after[3]; /* padding on the right */
    int64_t mode;     /* tern_padding_mode    */
} conv;

/* ---- kernels ---- */

/* Views (N, C, L) as (N, C, 1, L); leaves everything else. */
static const tern__view *conv_widened(const tern__view *view, tern__view *seen)
{
    if (!view || view->ndim != 3) return view;
    *seen = *view;
    seen->ndim = 4;
    seen->shape[3] = view->shape[2];
    seen->stride[3] = view->stride[2];
    seen->shape[2] = 1;
    return seen;
}

static bool conv_run(tern_scope *scope, const conv *c, tern__call *call)
{
    tern__view in[3], out[2];
    if (tern__view_count(call->in[0]) == 0) return tern__fill_zeros(scope, call);
    for (int i = 0; i < 3; i++) call->in[i] = conv_widened(call->in[i], &in[i]);
    for (int i = 0; i < 2; i++) call->out[i] = conv_widened(call->out[i], &out[i]);
    call->attr = &c->attr;
    return tern__run(scope, call);
}

/* Views a vector with one number per channel as (N, C, ..). */
static tern__view of_channels(const tern__view *vector, const tern__view *like)
{
    tern__view seen = tern__view_make(vector->dtype, TERN__PLAIN, like->ndim, like->shape);
    for (int d = 0; d < like->ndim; d++) seen.stride[d] = d == 1 ? vector->stride[0] : 0;
    seen.data = vector->data;
    return seen;
}

/* ---- gradients ---- */

/* Computes the bias's gradient, dy summed over all dimensions except channels. */
static int bias_gradient(tern_scope *scope, tern__node *node)
{
    static const tern__factor_attr one = {1};
    bool add;
    const tern__view *dy = tern__dy(node), *db = tern__grad_open(scope, node, BIAS, &add);
    if (!db) return scope->error.code;
    tern__view seen = of_channels(db, dy);
    tern__call call = {.kernel = TERN__SUM, .in = {dy}, .out = {&seen}, .add = {add}, .attr = &one};
    return tern__run(scope, &call) ? tern__grad_done(scope, node, BIAS) : scope->error.code;
}

/* Computes the weight's gradient, and the bias's, which the kernel gets for free. */
static int weight_gradient(tern_scope *scope, tern__node *node)
{
    const conv *c = node->attr;
    const tern__view *x = &node->saved[X].view, *dy = tern__dy(node);
    bool bias = tern__wants(node, BIAS) && !c->transposed;
    tern__call call = {.kernel = TERN__CONV_WEIGHT_GRAD,
                       .in = {c->transposed ? x : dy, c->transposed ? dy : x}};
    call.out[0] = tern__grad_open(scope, node, WEIGHT, &call.add[0]);
    if (bias) call.out[1] = tern__grad_open(scope, node, BIAS, &call.add[1]);
    if (!call.out[0] || (bias && !call.out[1]) || !conv_run(scope, c, &call)) return scope->error.code;
    int status = bias ? tern__grad_done(scope, node, BIAS) : TERN_OK;
    return status ? status : tern__grad_done(scope, node, WEIGHT);
}

static int data_gradient(tern_scope *scope, tern__node *node)
{
    const conv *c = node->attr;
    tern__call call = {.kernel = c->transposed ? TERN__CONV : TERN__CONV_DATA_GRAD,
                       .in = {tern__dy(node), &node->saved[WEIGHT].view}};
    call.out[0] = tern__grad_open(scope, node, X, &call.add[0]);
    if (!call.out[0] || !conv_run(scope, c, &call)) return scope->error.code;
    return tern__grad_done(scope, node, X);
}

/* Parameters come first: their bucket can be reduced while the data gradient is computed. */
static int conv_gradient(tern_scope *scope, tern__node *node)
{
    const conv *c = node->attr;
    bool weight = tern__wants(node, WEIGHT), with_weight = weight && !c->transposed;
    int status = TERN_OK;
    if (tern__wants(node, BIAS) && !with_weight) status = bias_gradient(scope, node);
    if (!status && weight) status = weight_gradient(scope, node);
    if (!status && tern__wants(node, X)) status = data_gradient(scope, node);
    return status;
}

/* ---- the shape rule ---- */

/* Formats numbers as "(1, 2)", or a single one as "2". */
#define NUMBERS_TEXT TERN__SHAPE_TEXT

static const char *numbers(const conv *c, const int64_t v[3], char text[NUMBERS_TEXT])
{
    tern__view seen = tern__view_make(TERN_I64, TERN__PLAIN, c->spatial, v + 3 - c->spatial);
    if (c->spatial > 1) return tern__shape_text(&seen, text);
    snprintf(text, NUMBERS_TEXT, "%lld", (long long)v[2]);
    return text;
}

static int check_padding(tern_scope *scope, const conv *c)
{
    char stride[NUMBERS_TEXT];
    for (int d = 0; d < 3; d++) {
        if (c->attr.padding[d] != TERN_PADDING_SAME || (c->attr.stride[d] == 1 && !c->transposed)) continue;
        return tern__scope_fail(
            scope, c->func, TERN_E_RANGE, "%s: TERN_PADDING_SAME is for a stride of 1%s, got stride %s",
            c->op, c->transposed ? " of what is not transposed" : "", numbers(c, c->attr.stride, stride));
    }
    return tern__padding_mode_check(scope, c->func, c->op, c->mode);
}

static bool is_padding(int64_t number)
{
    return number >= 0 || number == TERN_PADDING_SAME;
}

static int check_numbers(tern_scope *scope, const conv *c)
{
    const tern__conv_attr *a = &c->attr;
    char stride[NUMBERS_TEXT], padding[NUMBERS_TEXT], dilation[NUMBERS_TEXT], more[NUMBERS_TEXT];
    bool fit = a->groups >= 1, more_fit = true;
    for (int d = 0; d < 3; d++) {
        fit = fit && a->stride[d] >= 1 && is_padding(a->padding[d]) && a->dilation[d] >= 1;
        more_fit = more_fit && c->output_padding[d] >= 0 &&
                   (c->output_padding[d] < a->stride[d] || c->output_padding[d] < a->dilation[d]);
    }
    numbers(c, a->stride, stride);
    numbers(c, a->dilation, dilation);
    if (!fit)
        return tern__scope_fail(scope, c->func, TERN_E_RANGE,
                                "%s: expected stride, dilation and groups of at least 1 and padding of at "
                                "least 0, got stride %s, dilation %s, groups %lld, padding %s",
                                c->op, stride, dilation, (long long)a->groups,
                                numbers(c, a->padding, padding));
    if (more_fit) return check_padding(scope, c);
    return tern__scope_fail(scope, c->func, TERN_E_RANGE,
                            "%s: expected an output_padding of at least 0 and less than stride or dilation, "
                            "got output_padding %s, stride %s, dilation %s",
                            c->op, numbers(c, c->output_padding, more), stride, dilation);
}

static bool conv_dtypes_fit(const tern_tensor *x, const tern_tensor *w, const tern_tensor *b)
{
    tern_dtype dtype = w->view.dtype;
    return tern__dtype_is_float(dtype) && x->view.dtype == dtype && (!b || b->view.dtype == dtype);
}

/* Return the numbers of input and output channels of a weight. */
static int64_t channels_in(const conv *c, const tern__view *w)
{
    return c->transposed ? w->shape[0] : w->shape[1] * c->attr.groups;
}

static int64_t channels_out(const conv *c, const tern__view *w)
{
    return c->transposed ? w->shape[1] * c->attr.groups : w->shape[0];
}

static const char *groups_text(int64_t groups, char text[NUMBERS_TEXT])
{
    snprintf(text, NUMBERS_TEXT, groups == 1 ? "" : ", in %lld groups", (long long)groups);
    return text;
}

static bool has_batch(const conv *c, const tern__view *x)
{
    return x->ndim == 2 + c->spatial;
}

static int conv_check(tern_scope *scope, const conv *c, const tern_tensor *x, const tern_tensor *w,
                      const tern_tensor *b)
{
    const tern__view *xv = &x->view, *wv = &w->view;
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    char groups[NUMBERS_TEXT];
    int ndim = 2 + c->spatial, at = xv->ndim - ndim + 1; /* x's channel dimension */
    if (at < 0 || at > 1 || wv->ndim != ndim || xv->shape[at] != channels_in(c, wv) ||
        wv->shape[0] % c->attr.groups)
        return tern__scope_fail(scope, c->func, TERN_E_SHAPE, "%s%s: weight is %s but input is %s%s", c->op,
                                tern__layer_text(w, layer), tern__shape_text(wv, ws),
                                tern__shape_text(xv, xs), groups_text(c->attr.groups, groups));
    if (b && (b->view.ndim != 1 || b->view.shape[0] != channels_out(c, wv)))
        return tern__scope_fail(scope, c->func, TERN_E_SHAPE, "%s%s: weight is %s but bias is %s", c->op,
                                tern__layer_text(w, layer), tern__shape_text(wv, ws),
                                tern__shape_text(&b->view, bs));
    if (!conv_dtypes_fit(x, w, b))
        return tern__scope_fail(scope, c->func, TERN_E_DTYPE,
                                "%s%s: expected one floating-point dtype, got weight %s, input %s, bias %s",
                                c->op, tern__layer_text(w, layer), tern_dtype_name(wv->dtype),
                                tern_dtype_name(xv->dtype), b ? tern_dtype_name(b->view.dtype) : "none");
    return TERN_OK;
}

/* Splits the padding between both sides; if the total is odd, the right side gets one more. */
static void settle_padding(conv *c, const tern__view *w)
{
    for (int i = 3 - c->spatial; i < 3; i++) {
        int64_t *before = &c->attr.padding[i],
                reach = c->attr.dilation[i] * (w->shape[c->spatial - 1 + i] - 1);
        bool same = *before == TERN_PADDING_SAME;
        if (same) *before = TERN__MAX(reach, 0) / 2;
        c->after[i] = same ? TERN__MAX(reach, 0) - *before : *before;
    }
}

/* Returns the output size along axis i for sizes `x` and `w`; below 1, there is no output. */
static int64_t output_size(const conv *c, int64_t x, int64_t w, int i)
{
    int64_t reach = c->attr.dilation[i] * (w - 1) + 1, padding = c->attr.padding[i] + c->after[i];
    if (c->transposed) return (x - 1) * c->attr.stride[i] - padding + reach + c->output_padding[i];
    int64_t room = x + padding - reach;
    return room < 0 ? 0 : room / c->attr.stride[i] + 1;
}

/* Fills in the output's shape, with a batch dimension. Only the batch may be empty. */
static int output_shape(tern_scope *scope, const conv *c, const tern_tensor *x, const tern_tensor *w,
                        int64_t shape[TERN_NDIM_MAX])
{
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    char padding[NUMBERS_TEXT], dilation[NUMBERS_TEXT];
    const tern__view *xv = &x->view;
    const int64_t *sizes = xv->shape + xv->ndim - c->spatial;
    bool empty = tern__view_count(&w->view) == 0;
    shape[0] = has_batch(c, xv) ? xv->shape[0] : 1;
    shape[1] = channels_out(c, &w->view);
    for (int d = 0; d < c->spatial; d++) {
        shape[2 + d] = output_size(c, sizes[d], w->view.shape[2 + d], 3 - c->spatial + d);
        empty = empty || sizes[d] == 0 || shape[2 + d] < 1;
    }
    if (!empty) return TERN_OK;
    return tern__scope_fail(scope, c->func, TERN_E_SHAPE,
                            "%s%s: nothing to compute: weight is %s, input %s, padding %s, dilation %s",
                            c->op, tern__layer_text(w, layer), tern__shape_text(&w->view, ws),
                            tern__shape_text(xv, xs), numbers(c, c->attr.padding, padding),
                            numbers(c, c->attr.dilation, dilation));
}

/* ---- forward ---- */

static bool forward_transposed(tern_scope *scope, const conv *c, const tern__view *x,
                               const tern__view *weight, const tern__view *bias, const tern__view *y)
{
    tern__call call = {.kernel = TERN__CONV_DATA_GRAD, .in = {x, weight}, .out = {y}};
    if (!conv_run(scope, c, &call)) return false;
    if (!bias || tern__view_count(y) == 0) return true;
    tern__view seen = of_channels(bias, y);
    tern__call add = {.kernel = TERN__ADD, .in = {y, &seen}, .out = {y}};
    return tern__run(scope, &add);
}

static bool conv_forward(tern_scope *scope, const conv *c, const tern__view *x, const tern__view *weight,
                         const tern__view *bias, const tern__view *y)
{
    if (c->transposed) return forward_transposed(scope, c, x, weight, bias, y);
    tern__call call = {.kernel = TERN__CONV, .in = {x, weight, bias}, .out = {y}};
    return conv_run(scope, c, &call);
}

/* Returns the weight in the layout that the device's convolutions need. A parameter's copy is made at its
 * first use and kept for the step like an autocast cast: forward and data gradient share it, and the weight
 * gradient is computed in its layout and copied into the parameter's in one pass. */
static tern_tensor *laid_weight(tern_scope *scope, tern_tensor *weight)
{
    tern__layout layout = tern__weight_layout(scope->here, &weight->view);
    bool kept = weight->leaf && weight->view.layout != layout && !scope->checkpoint.traced;
    tern_tensor *laid = kept ? tern__cast_find(scope, weight, weight->view.dtype) : NULL;
    if (laid) return laid;
    laid = tern__laid_out(scope, weight, layout);
    if (laid && kept) tern__cast_keep(scope, weight, laid);
    return laid;
}

/* Pads x where the kernels cannot: with x's own elements, or with zeros on one side only. The padding that is
 * left for the kernels stays in c. */
static tern_tensor *padded(tern_scope *scope, conv *c, tern_tensor *x)
{
    bool any = false, zeros = c->mode == TERN_PADDING_MODE_ZEROS;
    tern__padding p = {.mode = (tern_padding_mode)c->mode};
    for (int i = 3 - c->spatial, d = x->view.ndim - c->spatial; i < 3; i++, d++) {
        int64_t kernels = zeros ? c->attr.padding[i] : 0;
        p.before[d] = c->attr.padding[i] - kernels;
        p.after[d] = c->after[i] - kernels;
        c->attr.padding[i] = kernels;
        any = any || p.before[d] || p.after[d];
    }
    return any ? tern__pad(scope, c->func, x, &p) : x;
}

/* Convolves a batch into a result of this shape. */
static tern_tensor *convolve(tern_scope *scope, const conv *c, tern_tensor *const operands[3],
                             const int64_t *shape)
{
    tern_tensor *x = operands[X], *weight = operands[WEIGHT], *bias = operands[BIAS];
    x = tern__dense(scope, x);
    weight = x ? laid_weight(scope, weight) : NULL;
    bias = weight && bias ? tern__plain(scope, bias) : NULL;
    if (scope->error.code) return NULL;
    tern__layout layout = tern__layout_of(scope->here, x->view.dtype, shape[1]);
    tern_tensor *y = tern__result(scope, x->view.dtype, layout, 2 + c->spatial, shape);
    if (!y || !conv_forward(scope, c, &x->view, &weight->view, bias ? &bias->view : NULL, &y->view))
        return NULL;
    tern__node *node = tern__record(scope, c->op, conv_gradient, y, 3, (tern_tensor *[]){x, weight, bias});
    tern__save(node, X, x);
    tern__save(node, WEIGHT, weight);
    tern__save_attr(scope, node, c, sizeof(*c));
    return y;
}

/* Checks the operands and brings x into the form that the kernels need. */
static tern_tensor *conv_prepare(tern_scope *scope, conv *c, tern_tensor *operands[3])
{
    int64_t shape[TERN_NDIM_MAX];
    tern_tensor *weight = operands[WEIGHT], **x = &operands[X];
    if (check_numbers(scope, c) || conv_check(scope, c, *x, weight, operands[BIAS])) return NULL;
    bool batch = has_batch(c, &(*x)->view);
    settle_padding(c, &weight->view);
    if (output_shape(scope, c, *x, weight, shape) || !(*x = padded(scope, c, *x))) return NULL;
    if (batch) return convolve(scope, c, operands, shape);
    *x = tern__batch_of_one(scope, *x);
    return *x ? tern__without_batch(scope, convolve(scope, c, operands, shape)) : NULL;
}

/* ---- public ---- */

/* Every options struct has this after its size: `spatial` numbers of each kind, then the groups. */
static void take_numbers(conv *c, const void *opts)
{
    const int64_t *number = (const int64_t *)((const char *)opts + sizeof(size_t));
    int64_t *const kinds[] = {c->attr.stride, c->attr.padding, c->output_padding, c->attr.dilation};
    c->attr = (tern__conv_attr){.stride = {1, 1, 1}, .dilation = {1, 1, 1}};
    for (int i = 0; i < 4; i++) {
        bool has = c->transposed || kinds[i] != c->output_padding;
        for (int d = 3 - c->spatial; d < 3 && has; d++) kinds[i][d] = *number++;
    }
    c->attr.groups = *number;
}

/* Runs an op. Its options are read into `o`, which holds the defaults; `mode` points into it, or is NULL. */
static tern_tensor *conv_enter(tern_scope *scope, conv *c, tern_tensor *operands[3], void *o, size_t size,
                               const tern_padding_mode *mode, const void *opts)
{
    if (!tern__op_enter(scope, c->func, 2, 3, operands)) return NULL;
    if (tern__scope_opts(scope, o, size, opts, c->func)) return NULL;
    take_numbers(c, o);
    c->mode = mode ? (int)*mode : TERN_PADDING_MODE_ZEROS;
    return conv_prepare(scope, c, operands);
}

tern_tensor *tern_conv1d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                         const tern_conv1d_opts *opts)
{
    tern_conv1d_opts o = tern_conv1d_defaults();
    conv c = {.func = __func__, .op = "conv1d", .spatial = 1};
    return conv_enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), &o.padding_mode, opts);
}

tern_tensor *tern_conv2d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                         const tern_conv2d_opts *opts)
{
    tern_conv2d_opts o = tern_conv2d_defaults();
    conv c = {.func = __func__, .op = "conv2d", .spatial = 2};
    return conv_enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), &o.padding_mode, opts);
}

tern_tensor *tern_conv3d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                         const tern_conv3d_opts *opts)
{
    tern_conv3d_opts o = tern_conv3d_defaults();
    conv c = {.func = __func__, .op = "conv3d", .spatial = 3};
    return conv_enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), &o.padding_mode, opts);
}

tern_tensor *tern_conv_transpose1d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                   const tern_conv_transpose1d_opts *opts)
{
    tern_conv_transpose1d_opts o = tern_conv_transpose1d_defaults();
    conv c = {.func = __func__, .op = "conv_transpose1d", .spatial = 1, .transposed = true};
    return conv_enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), NULL, opts);
}

tern_tensor *tern_conv_transpose2d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                   const tern_conv_transpose2d_opts *opts)
{
    tern_conv_transpose2d_opts o = tern_conv_transpose2d_defaults();
    conv c = {.func = __func__, .op = "conv_transpose2d", .spatial = 2, .transposed = true};
    return conv_enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), NULL, opts);
}

tern_tensor *tern_conv_transpose3d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                   const tern_conv_transpose3d_opts *opts)
{
    tern_conv_transpose3d_opts o = tern_conv_transpose3d_defaults();
    conv c = {.func = __func__, .op = "conv_transpose3d", .spatial = 3, .transposed = true};
    return conv_enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), NULL, opts);
}

tern_conv1d_opts tern_conv1d_defaults(void)
{
    return (tern_conv1d_opts){
        .size = sizeof(tern_conv1d_opts), .stride = 1, .dilation = 1, .groups = 1, .bias = true};
}

tern_conv2d_opts tern_conv2d_defaults(void)
{
    return (tern_conv2d_opts){
        .size = sizeof(tern_conv2d_opts), .stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .bias = true};
}

tern_conv3d_opts tern_conv3d_defaults(void)
{
    return (tern_conv3d_opts){.size = sizeof(tern_conv3d_opts),
                              .stride = {1, 1, 1},
                              .dilation = {1, 1, 1},
                              .groups = 1,
                              .bias = true};
}

tern_conv_transpose1d_opts tern_conv_transpose1d_defaults(void)
{
    return (tern_conv_transpose1d_opts){
        .size = sizeof(tern_conv_transpose1d_opts), .stride = 1, .dilation = 1, .groups = 1, .bias = true};
}

tern_conv_transpose2d_opts tern_conv_transpose2d_defaults(void)
{
    return (tern_conv_transpose2d_opts){.size = sizeof(tern_conv_transpose2d_opts),
                                        .stride = {1, 1},
                                        .dilation = {1, 1},
                                        .groups = 1,
                                        .bias = true};
}

tern_conv_transpose3d_opts tern_conv_transpose3d_defaults(void)
{
    return (tern_conv_transpose3d_opts){.size = sizeof(tern_conv_transpose3d_opts),
                                        .stride = {1, 1, 1},
                                        .dilation = {1, 1, 1},
                                        .groups = 1,
                                        .bias = true};
}
