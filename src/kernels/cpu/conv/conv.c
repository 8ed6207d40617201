/* conv.c - convolutions over two or three spatial dimensions and their gradients: three kernels, each
 * computed by one of several algorithms (choice.h), and in f64 by f64.c. 16-bit cases that no algorithm
 * takes go through f32 copies. */
#include "kernels/cpu/conv/choice.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/widen.h"
#include "kernels/reduce.h"

#include <string.h>

int64_t tern__conv_padding_after(const tern__conv *c, int axis)
{
    const tern__conv_attr *a = c->attr;
    int d = 2 + axis - tern__conv_first_axis(c);
    int64_t in = c->op[TERN__CONV_X].view->shape[d], out = c->op[TERN__CONV_Y].view->shape[d];
    int64_t reach = a->dilation[axis] * (c->op[TERN__CONV_W].view->shape[d] - 1) + 1;
    int64_t padding = a->padding[axis];
    if ((in + 2 * padding - reach) / a->stride[axis] + 1 == out) return padding;
    return (out - 1) * a->stride[axis] + reach - in - padding;
}

tern__prim_key tern__conv_key(const tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    tern__prim_key key = tern__prim_key_make(c->call, 0);
    int64_t *number = key.number;
    size_t shape_bytes = (size_t)x->ndim * sizeof(*number);
    memcpy(number, x->shape, shape_bytes);
    memcpy(number + 5, w->shape, shape_bytes);
    memcpy(number + 10, c->attr, sizeof(*c->attr));
    number[20] = x->layout;
    number[21] = c->op[TERN__CONV_Y].view->layout;
    number[22] = c->op[TERN__CONV_B].view != NULL;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) number[24 + i] = c->op[i].view ? c->op[i].view->dtype : 0;
    number[28] = c->op[TERN__CONV_W].offset;
    memcpy(number + 29, w->stride + 1, 3 * sizeof(*number));
    return key;
}

int tern__conv_sum_bias(const tern__conv *c)
{
    static const tern__factor_attr one = {1};
    const tern__view *b = c->op[TERN__CONV_B].view, *dy = c->op[TERN__CONV_Y].view;
    if (!b) return TERN_OK;
    tern__view seen = tern__view_make(b->dtype, TERN__PLAIN, dy->ndim, dy->shape);
    for (int d = 0; d < dy->ndim; d++) seen.stride[d] = d == 1;
    seen.data = b->data;
    tern__call sum = {.device = c->call->device,
                      .kernel = TERN__SUM,
                      .in = {dy},
                      .out = {&seen},
                      .add = {c->op[TERN__CONV_B].add},
                      .attr = &one,
                      .err = c->call->err};
    return tern__kernel_run(&sum);
}

/* ---- cases ---- */

/* Whether all operands have one dtype, except those that are always computed in f32. */
static bool conv_takes(const tern__conv *c)
{
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        const tern__view *view = c->op[i].view;
        if (!view) continue;
        bool blocked = view->layout == TERN__BLOCKED16 && (i == TERN__CONV_X || i == TERN__CONV_Y);
        bool rounded = c->op[i].result && (i == TERN__CONV_W || i == TERN__CONV_B) && view->dtype == TERN_F32;
        if (!(view->dtype == c->op[TERN__CONV_X].view->dtype || rounded) || tern__view_count(view) == 0 ||
            !(blocked || tern__view_is_contiguous(view)))
            return false;
    }
    bool fit = true;
    for (int axis = tern__conv_first_axis(c); axis < 3; axis++)
        fit = fit && tern__conv_padding_after(c, axis) >= 0;
    return fit;
}

/* ---- taps that only read padding ---- */

/* Removes the ends of a kernel's axis that only read padding at every position: a dilated kernel may be
 * larger than the image. Padding stays non-negative on both sides. */
static bool trim_axis(const tern__conv *c, int axis, tern__view *w, tern__conv_attr *attr, int64_t *offset)
{
    int d = 2 + axis - tern__conv_first_axis(c);
    int64_t in = c->op[TERN__CONV_X].view->shape[d],
            way = (c->op[TERN__CONV_Y].view->shape[d] - 1) * attr->stride[axis];
    int64_t dilation = attr->dilation[axis], padding = attr->padding[axis], all = w->shape[d];
    int64_t first = padding > way ? (padding - way + dilation - 1) / dilation : 0;
    int64_t last = (in - 1 + padding) / dilation, least = (in - 1 + padding - way + dilation - 1) / dilation;
    first = TERN__MIN(TERN__MIN(first, padding / dilation), all - 1);
    last = TERN__MIN(TERN__MAX(TERN__MAX(last, least), first), all - 1);
    w->shape[d] = last - first + 1;
    attr->padding[axis] -= first * dilation;
    *offset += first * w->stride[d];
    return w->shape[d] < all;
}

/* Runs the given algorithm, or the chosen one for NULL. */
static int run_by(tern__conv *c, const tern__conv_algorithm *algorithm)
{
    if (algorithm && !algorithm->takes(c)) return TERN_E_UNSUPPORTED;
    int status = algorithm ? TERN_OK : tern__conv_choose(c, &algorithm);
    if (!status) status = algorithm->run(c);
    if (!status) c->call->device->algorithm = algorithm->name;
    return status;
}

static bool conv_is_taken(const tern__conv *c)
{
    bool taken = false;
    for (int i = 0; tern__conv_algorithms[i]; i++) taken = taken || tern__conv_algorithms[i]->takes(c);
    return taken;
}

/* Runs the case itself, or the equivalent one with stride 1 and a copy (thin.c). */
static int run_dense(tern__conv *c, const tern__conv_algorithm *algorithm)
{
    tern__conv_thin thin;
    if (!conv_is_taken(c)) return TERN_E_UNSUPPORTED;
    if (!tern__conv_is_thin(c)) return run_by(c, algorithm);
    int status = tern__conv_thin_open(c, &thin);
    if (!status) status = run_by(&thin.c, algorithm);
    const char *name = c->call->device->algorithm;
    if (!status) status = tern__conv_thin_close(c, &thin);
    c->call->device->algorithm = name; /* not the algorithm of the copies */
    return status;
}

/* Finds the views of x, w, y and b among inputs and outputs. */
static void find_views(const tern__call *call, const tern__view *views[TERN__CONV_OPERANDS])
{
    bool forward = call->kernel == TERN__CONV, weight = call->kernel == TERN__CONV_WEIGHT_GRAD;
    views[TERN__CONV_X] = forward ? call->in[0] : weight ? call->in[1] : call->out[0];
    views[TERN__CONV_W] = weight ? call->out[0] : call->in[1];
    views[TERN__CONV_Y] = forward ? call->out[0] : call->in[0];
    views[TERN__CONV_B] = forward ? call->in[2] : weight ? call->out[1] : NULL;
}

int tern__conv_run(const tern__call *call, const tern__conv_algorithm *algorithm)
{
    const tern__view *views[TERN__CONV_OPERANDS];
    find_views(call, views);
    if (!views[TERN__CONV_W]) return TERN_E_UNSUPPORTED;
    tern__call seen = *call;
    tern__conv c = {.call = &seen, .attr = call->attr};
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        c.op[i].view = views[i];
        for (int o = 0; o < 2; o++)
            if (views[i] && views[i] == call->out[o]) {
                c.op[i].result = true;
                c.op[i].add = call->add[o];
            }
    }
    if (!conv_takes(&c)) return TERN_E_UNSUPPORTED;
    tern__conv_operand *w = &c.op[TERN__CONV_W];
    tern__view kernel = *w->view;
    tern__conv_attr attr = *c.attr;
    bool trimmed = false;
    for (int axis = tern__conv_first_axis(&c); axis < 3; axis++)
        trimmed = trim_axis(&c, axis, &kernel, &attr, &w->offset) || trimmed;
    if (trimmed && w->result && !w->add) /* the gradient of the removed taps is 0 */
        memset(w->view->data, 0, tern__view_bytes(w->view));
    *(w->result ? &seen.out[0] : &seen.in[1]) = w->view = &kernel;
    seen.attr = c.attr = &attr;
    return run_dense(&c, algorithm);
}

/* ---- the three kernels ---- */

/* 16-bit cases without an algorithm may have one in f32. Without oneDNN first layers, whose channels fill no
 * block, have none: f64's products of windows are much faster than the reference. */
int tern__cpu_conv(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_conv(call);
    int status = tern__conv_run(call, NULL);
    if (status != TERN_E_UNSUPPORTED) return status;
    if (tern__view_is_half(call->in[0])) return tern__cpu_widened(call, tern__cpu_conv);
    return tern__dnnl_is_there() ? status : tern__cpu_widened_to_f64(call, tern__f64_conv);
}

int tern__cpu_conv_data_grad(const tern__call *call)
{
    return tern__cpu_conv(call);
}

int tern__cpu_conv_weight_grad(const tern__call *call)
{
    return tern__cpu_conv(call);
}
