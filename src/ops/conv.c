/* conv.c - convolutions and transposed convolutions over one, two or three spatial dimensions, by three
 * kernels.
 *
 * A transposed convolution is the gradient of a convolution from y to x: its forward is the kernel of that
 * one's data gradient, its data gradient the convolution itself, and its weight gradient the same kernel with
 * x and dy in each other's places. What is 1-d is 2-d with a height of 1, which both layouts are as they
 * stand. */
#include "kernels/conv.h"
#include "base/opts.h"
#include "kernels/reduce.h"
#include "ops/ops.h"

#include <tern/conv.h>

#include <stdio.h>

/* Inputs; x and weight are kept under the same numbers. */
enum { X, WEIGHT, BIAS };

typedef struct conv {
    const char *func, *op; /* "tern_conv1d", "conv1d": for errors */
    int spatial;           /* how many dimensions                 */
    bool transposed;
    tern__conv_attr attr; /* the last numbers count */
    int64_t output_padding[3];
} conv;

/* ---- kernels ---- */

/* (N, C, L) as (N, C, 1, L); everything else stays. */
static const tern__view *widened(const tern__view *view, tern__view *seen)
{
    if (!view || view->ndim != 3) return view;
    *seen = *view;
    seen->ndim = 4;
    seen->shape[3] = view->shape[2];
    seen->stride[3] = view->stride[2];
    seen->shape[2] = 1;
    return seen;
}

/* Of nothing come zeros. */
static bool fill_zeros(tern_scope *scope, const tern__call *call)
{
    for (int i = 0; i < 2; i++)
        if (call->out[i] && !call->add[i] && !tern__fill(scope, call->out[i], 0)) return false;
    return true;
}

static bool run(tern_scope *scope, const conv *c, tern__call *call)
{
    tern__view in[3], out[2];
    if (tern__view_count(call->in[0]) == 0) return fill_zeros(scope, call);
    for (int i = 0; i < 3; i++) call->in[i] = widened(call->in[i], &in[i]);
    for (int i = 0; i < 2; i++) call->out[i] = widened(call->out[i], &out[i]);
    call->attr = &c->attr;
    return tern__run(scope, call);
}

/* A vector of one number a channel seen with the shape (N, C, ..). */
static tern__view of_channels(const tern__view *vector, const tern__view *like)
{
    tern__view seen = tern__view_make(vector->dtype, TERN__PLAIN, like->ndim, like->shape);
    for (int d = 0; d < like->ndim; d++) seen.stride[d] = d == 1 ? vector->stride[0] : 0;
    seen.data = vector->data;
    return seen;
}

/* ---- gradients ---- */

/* dy summed over all but its channels. */
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

/* With the bias's, which costs the kernel nothing. */
static int weight_gradient(tern_scope *scope, tern__node *node)
{
    const conv *c = node->attr;
    const tern__view *x = &node->saved[X].view, *dy = tern__dy(node);
    bool bias = tern__wants(node, BIAS) && !c->transposed;
    tern__call call = {.kernel = TERN__CONV_WEIGHT_GRAD,
                       .in = {c->transposed ? x : dy, c->transposed ? dy : x}};
    call.out[0] = tern__grad_open(scope, node, WEIGHT, &call.add[0]);
    if (bias) call.out[1] = tern__grad_open(scope, node, BIAS, &call.add[1]);
    if (!call.out[0] || (bias && !call.out[1]) || !run(scope, c, &call)) return scope->error.code;
    int status = bias ? tern__grad_done(scope, node, BIAS) : TERN_OK;
    return status ? status : tern__grad_done(scope, node, WEIGHT);
}

static int data_gradient(tern_scope *scope, tern__node *node)
{
    const conv *c = node->attr;
    tern__call call = {.kernel = c->transposed ? TERN__CONV : TERN__CONV_DATA_GRAD,
                       .in = {tern__dy(node), &node->saved[WEIGHT].view}};
    call.out[0] = tern__grad_open(scope, node, X, &call.add[0]);
    if (!call.out[0] || !run(scope, c, &call)) return scope->error.code;
    return tern__grad_done(scope, node, X);
}

/* The parameters first: their bucket can be reduced while the data's gradient is computed. */
static int gradient(tern_scope *scope, tern__node *node)
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

/* "(1, 2)", or "2" where one is meant. */
#define NUMBERS_TEXT TERN__SHAPE_TEXT

static const char *numbers(const conv *c, const int64_t v[3], char text[NUMBERS_TEXT])
{
    tern__view seen = tern__view_make(TERN_I64, TERN__PLAIN, c->spatial, v + 3 - c->spatial);
    if (c->spatial > 1) return tern__shape_text(&seen, text);
    snprintf(text, NUMBERS_TEXT, "%lld", (long long)v[2]);
    return text;
}

static int check_numbers(tern_scope *scope, const conv *c)
{
    const tern__conv_attr *a = &c->attr;
    char stride[NUMBERS_TEXT], padding[NUMBERS_TEXT], dilation[NUMBERS_TEXT], more[NUMBERS_TEXT];
    bool fit = a->groups >= 1, more_fit = true;
    for (int d = 0; d < 3; d++) {
        fit = fit && a->stride[d] >= 1 && a->padding[d] >= 0 && a->dilation[d] >= 1;
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
    if (more_fit) return TERN_OK;
    return tern__scope_fail(scope, c->func, TERN_E_RANGE,
                            "%s: expected an output_padding of at least 0 and less than stride or dilation, "
                            "got output_padding %s, stride %s, dilation %s",
                            c->op, numbers(c, c->output_padding, more), stride, dilation);
}

static bool dtypes_fit(const tern_tensor *x, const tern_tensor *w, const tern_tensor *b)
{
    tern_dtype dtype = w->view.dtype;
    return tern__dtype_is_float(dtype) && x->view.dtype == dtype && (!b || b->view.dtype == dtype);
}

/* Channels of x that the weight takes, and of y that it makes. */
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

static int check(tern_scope *scope, const conv *c, const tern_tensor *x, const tern_tensor *w,
                 const tern_tensor *b)
{
    const tern__view *xv = &x->view, *wv = &w->view;
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    char groups[NUMBERS_TEXT];
    int ndim = 2 + c->spatial;
    if (xv->ndim != ndim || wv->ndim != ndim || xv->shape[1] != channels_in(c, wv) ||
        wv->shape[0] % c->attr.groups)
        return tern__scope_fail(scope, c->func, TERN_E_SHAPE, "%s%s: weight is %s but input is %s%s", c->op,
                                tern__layer_text(w, layer), tern__shape_text(wv, ws),
                                tern__shape_text(xv, xs), groups_text(c->attr.groups, groups));
    if (b && (b->view.ndim != 1 || b->view.shape[0] != channels_out(c, wv)))
        return tern__scope_fail(scope, c->func, TERN_E_SHAPE, "%s%s: weight is %s but bias is %s", c->op,
                                tern__layer_text(w, layer), tern__shape_text(wv, ws),
                                tern__shape_text(&b->view, bs));
    if (!dtypes_fit(x, w, b))
        return tern__scope_fail(scope, c->func, TERN_E_DTYPE,
                                "%s%s: expected one floating-point dtype, got weight %s, input %s, bias %s",
                                c->op, tern__layer_text(w, layer), tern_dtype_name(wv->dtype),
                                tern_dtype_name(xv->dtype), b ? tern_dtype_name(b->view.dtype) : "none");
    return TERN_OK;
}

/* Of spatial dimension `d` of the operands, which numbers `i` of the attributes are about; below 1: none. */
static int64_t output_size(const conv *c, const tern__view *x, const tern__view *w, int d, int i)
{
    int64_t reach = c->attr.dilation[i] * (w->shape[d] - 1) + 1, twice = 2 * c->attr.padding[i];
    if (c->transposed) return (x->shape[d] - 1) * c->attr.stride[i] - twice + reach + c->output_padding[i];
    int64_t room = x->shape[d] + twice - reach;
    return room < 0 ? 0 : room / c->attr.stride[i] + 1;
}

/* Fills `shape` with the output's. Empty is only a batch. */
static int output_shape(tern_scope *scope, const conv *c, const tern_tensor *x, const tern_tensor *w,
                        int64_t shape[TERN_NDIM_MAX])
{
    char xs[TERN__SHAPE_TEXT], ws[TERN__SHAPE_TEXT], layer[TERN__LAYER_TEXT];
    char padding[NUMBERS_TEXT], dilation[NUMBERS_TEXT];
    const tern__view *xv = &x->view;
    bool empty = tern__view_count(&w->view) == 0;
    shape[0] = xv->shape[0];
    shape[1] = channels_out(c, &w->view);
    for (int d = 2; d < xv->ndim; d++) {
        shape[d] = output_size(c, xv, &w->view, d, d - xv->ndim + 3);
        empty = empty || xv->shape[d] == 0 || shape[d] < 1;
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
    if (!run(scope, c, &call)) return false;
    if (!bias || tern__view_count(y) == 0) return true;
    tern__view seen = of_channels(bias, y);
    tern__call add = {.kernel = TERN__ADD, .in = {y, &seen}, .out = {y}};
    return tern__run(scope, &add);
}

static bool forward(tern_scope *scope, const conv *c, const tern__view *x, const tern__view *weight,
                    const tern__view *bias, const tern__view *y)
{
    if (c->transposed) return forward_transposed(scope, c, x, weight, bias, y);
    tern__call call = {.kernel = TERN__CONV, .in = {x, weight, bias}, .out = {y}};
    return run(scope, c, &call);
}

/* The weight as the device's convolutions take it. The copy of a parameter is made with its first use and
 * kept for the step as autocast's casts are, so forward and data gradient share it, and the weight gradient
 * is made in its layout and goes into the parameter's in one pass. */
static tern_tensor *laid_weight(tern_scope *scope, tern_tensor *weight)
{
    tern__layout layout = tern__weight_layout(scope->here, &weight->view);
    bool kept = weight->leaf && weight->view.layout != layout && !scope->traced;
    tern_tensor *laid = kept ? tern__cast_find(scope, weight, weight->view.dtype) : NULL;
    if (laid) return laid;
    laid = tern__laid_out(scope, weight, layout);
    if (laid && kept) tern__cast_keep(scope, weight, laid);
    return laid;
}

static tern_tensor *convolve(tern_scope *scope, const conv *c, tern_tensor *const operands[3])
{
    tern_tensor *x = operands[X], *weight = operands[WEIGHT], *bias = operands[BIAS];
    int64_t shape[TERN_NDIM_MAX];
    if (check_numbers(scope, c) || check(scope, c, x, weight, bias) ||
        output_shape(scope, c, x, weight, shape))
        return NULL;
    x = tern__dense(scope, x);
    weight = x ? laid_weight(scope, weight) : NULL;
    bias = weight && bias ? tern__plain(scope, bias) : NULL;
    if (scope->error.code) return NULL;
    tern__layout layout = tern__layout_of(scope->here, shape[1]);
    tern_tensor *y = tern__result(scope, x->view.dtype, layout, 2 + c->spatial, shape);
    if (!y || !forward(scope, c, &x->view, &weight->view, bias ? &bias->view : NULL, &y->view)) return NULL;
    tern__node *node = tern__record(scope, c->op, gradient, y, 3, (tern_tensor *[]){x, weight, bias});
    tern__save(node, X, x);
    tern__save(node, WEIGHT, weight);
    tern__save_attr(scope, node, c, sizeof(*c));
    return y;
}

/* ---- public ---- */

/* What follows the size in each of the opts: `spatial` numbers of a kind, then the groups. */
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

/* The op, after its options have been read into `o`, which holds the defaults. */
static tern_tensor *enter(tern_scope *scope, conv *c, tern_tensor *operands[3], void *o, size_t size,
                          const void *opts)
{
    tern_error err = {0};
    if (!tern__op_enter(scope, c->func, 2, 3, operands)) return NULL;
    if (tern__opts_read(o, size, opts, c->func, &err)) {
        tern__scope_fail_with(scope, &err);
        return NULL;
    }
    take_numbers(c, o);
    return convolve(scope, c, operands);
}

#define CONV(name, dimensions, is_transposed)                                                                \
    tern_tensor *tern_##name(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,      \
                             const tern_##name##_opts *opts)                                                 \
    {                                                                                                        \
        tern_##name##_opts o = tern_##name##_defaults();                                                     \
        conv c = {.func = __func__, .op = #name, .spatial = dimensions, .transposed = is_transposed};        \
        return enter(scope, &c, (tern_tensor *[]){x, weight, bias}, &o, sizeof(o), opts);                    \
    }
CONV(conv1d, 1, false)
CONV(conv2d, 2, false)
CONV(conv3d, 3, false)
CONV(conv_transpose1d, 1, true)
CONV(conv_transpose2d, 2, true)
CONV(conv_transpose3d, 3, true)

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
