/* pointwise.c - the forward and the gradient of every pointwise op. A gradient is summed over the dimensions
 * along which its input was broadcast. */
#include "ops/pointwise.h"
#include "kernels/pointwise.h"
#include "kernels/reduce.h"

#include <string.h>

/* Saved for the gradient. */
typedef struct record {
    const tern__pointwise_op *op;
    tern__pointwise_attr attr;
} record;

static const uint64_t zero_bits = 0; /* 0 in every dtype */

static tern__view pointwise_seen_as(const tern__view *view, const tern__view *like)
{
    return tern__broadcast_view(view, like->ndim, like->shape);
}

/* ---- gradients ---- */

int tern__sum_into(tern_scope *scope, tern__node *node, int i, const tern__view *d)
{
    static const tern__factor_attr one = {1};
    bool add;
    const tern__view *grad = tern__grad_open(scope, node, i, &add);
    if (!grad) return scope->error.code;
    tern__view seen = pointwise_seen_as(grad, d);
    tern__call call = {.kernel = TERN__SUM, .in = {d}, .out = {&seen}, .add = {add}, .attr = &one};
    return tern__run(scope, &call) ? tern__grad_done(scope, node, i) : scope->error.code;
}

/* Returns an operand of a gradient's kernel, with dy's shape. */
static tern__view operand_view(const tern__node *node, tern__operand operand)
{
    const tern__view *dy = tern__dy(node);
    tern__view zero = tern__view_make(dy->dtype, TERN__PLAIN, 0, NULL);
    zero.data = (void *)&zero_bits;
    if (operand == TERN__DY) return *dy;
    return pointwise_seen_as(operand == TERN__ZERO ? &zero : &node->saved[operand - TERN__IN0].view, dy);
}

/* Runs the kernel for input i's gradient into `to`. */
static bool pointwise_run_gradient(tern_scope *scope, tern__node *node, int i, const tern__view *to, bool add)
{
    const record *r = node->attr;
    const tern__pointwise_grad *grad = &r->op->grad[i];
    tern__view views[TERN__POINTWISE_INS];
    tern__call call = {.kernel = grad->kernel, .out = {to}, .add = {add}, .attr = &r->attr};
    for (int n = 0; n < TERN__POINTWISE_INS && grad->in[n]; n++) {
        views[n] = operand_view(node, grad->in[n]);
        call.in[n] = &views[n];
    }
    return tern__run(scope, &call);
}

static int repeated_gradient(tern_scope *scope, tern__node *node, int i)
{
    const record *r = node->attr;
    if (r->op->grad[i].kernel == TERN__COPY) return tern__sum_into(scope, node, i, tern__dy(node));
    tern__saved d = tern__temporary(scope, tern__dy(node));
    bool ran = d.storage && pointwise_run_gradient(scope, node, i, &d.view, false);
    int status = ran ? tern__sum_into(scope, node, i, &d.view) : scope->error.code;
    tern__saved_drop(&d);
    return status;
}

static int pointwise_gradient_of(tern_scope *scope, tern__node *node, int i, bool is_last)
{
    const record *r = node->attr;
    const tern__view *dy = tern__dy(node), *x = &node->in[i]->view;
    if (!tern__view_same_shape(x, dy)) return repeated_gradient(scope, node, i);
    if (r->op->grad[i].kernel == TERN__COPY) return tern__grad_give(scope, node, i, dy);
    if (is_last && tern__owns_dy(node) && x->layout == dy->layout) {
        if (!pointwise_run_gradient(scope, node, i, dy, false)) return scope->error.code;
        return tern__grad_give(scope, node, i, dy);
    }
    bool add;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    if (!to || !pointwise_run_gradient(scope, node, i, to, add)) return scope->error.code;
    return tern__grad_done(scope, node, i);
}

static int pointwise_gradient(tern_scope *scope, tern__node *node)
{
    int last = TERN__POINTWISE_ARGS - 1;
    while (last > 0 && !tern__wants(node, last)) last--;
    for (int i = 0; i <= last; i++)
        if (tern__wants(node, i) && pointwise_gradient_of(scope, node, i, i == last))
            return scope->error.code;
    return TERN_OK;
}

/* ---- forward ---- */

static int pointwise_check_dtypes(tern_scope *scope, const char *func, const tern__pointwise_op *op,
                                  tern_tensor *const *in)
{
    int first = op->chooses ? 1 : 0;
    tern_dtype dtype = in[first]->view.dtype;
    for (int i = first + 1; i < op->inputs; i++)
        if (in[i]->view.dtype != dtype && !(op->masks && i == 1))
            return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected one dtype, got %s and %s",
                                    op->name, tern_dtype_name(dtype), tern_dtype_name(in[i]->view.dtype));
    bool fit = tern__dtype_is_float(dtype) || op->takes == TERN__ALL ||
               (op->takes == TERN__NUMBERS && dtype != TERN_BOOL);
    if (fit) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected %s, got %s", op->name,
                            op->takes == TERN__NUMBERS ? "numbers" : "floating point",
                            tern_dtype_name(dtype));
}

/* Computes the common shape of all inputs. */
static int join_shapes(tern_scope *scope, const char *func, const tern__pointwise_op *op,
                       tern_tensor *const *in, tern__view *all)
{
    char have[TERN__SHAPE_TEXT], next[TERN__SHAPE_TEXT];
    *all = in[0]->view;
    for (int i = 1; i < op->inputs; i++) {
        tern__view joined = {0};
        if (!tern__broadcast_shape(all, &in[i]->view, &joined.ndim, joined.shape))
            return tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: %s and %s cannot be broadcast together",
                                    op->name, tern__shape_text(all, have),
                                    tern__shape_text(&in[i]->view, next));
        *all = joined;
    }
    return tern__can_be(scope, func, TERN_F64, all->ndim, all->shape) ? TERN_OK : scope->error.code;
}

/* Chooses the layout: blocked if an input of the full shape is. Blocked inputs of other shapes become plain.
 */
static int settle_layout(tern_scope *scope, int inputs, tern_tensor **in, const tern__view *all,
                         tern__layout *layout)
{
    *layout = TERN__PLAIN;
    for (int i = 0; i < inputs; i++) {
        if (in[i]->view.layout == TERN__PLAIN) continue;
        if (tern__view_same_shape(&in[i]->view, all))
            *layout = in[i]->view.layout;
        else
            in[i] = tern__plain(scope, in[i]);
        if (!in[i]) return scope->error.code;
    }
    return TERN_OK;
}

static tern_tensor *pointwise_forward(tern_scope *scope, const tern__pointwise_op *op, tern_tensor *const *in,
                                      const tern__view *all, tern__layout layout, const record *r)
{
    tern_dtype dtype = op->compares ? TERN_BOOL : in[op->chooses ? 1 : 0]->view.dtype;
    tern_tensor *y = tern__result(scope, dtype, layout, all->ndim, all->shape);
    if (!y) return NULL;
    tern__view views[TERN__POINTWISE_ARGS];
    tern__call call = {.kernel = op->kernel, .out = {&y->view}, .attr = &r->attr};
    for (int i = 0; i < op->inputs; i++) {
        views[i] = pointwise_seen_as(&in[i]->view, &y->view);
        call.in[i] = &views[i];
    }
    return tern__view_count(all) == 0 || tern__run(scope, &call) ? y : NULL;
}

static bool pointwise_remake(tern_scope *scope, tern__node *node, const tern__view *y)
{
    const record *r = node->attr;
    tern__view views[TERN__POINTWISE_ARGS];
    tern__call call = {.kernel = r->op->kernel, .out = {y}, .attr = &r->attr};
    for (int i = 0; i < r->op->inputs; i++) {
        views[i] = pointwise_seen_as(&node->saved[i].view, y);
        call.in[i] = &views[i];
    }
    return tern__view_count(y) == 0 || tern__run(scope, &call);
}

/* Whether all inputs are saved, and the result is not. */
static bool pointwise_can_remake(const tern__pointwise_op *op, const tern__node *node)
{
    bool can = !node->saved[TERN__Y - TERN__IN0].view.data;
    for (int i = 0; i < op->inputs; i++) can &= node->saved[i].view.data != NULL;
    return can;
}

/* Saves what the wanted gradients will read. */
static void pointwise_save(const tern__pointwise_op *op, tern__node *node, tern_tensor *const *in,
                           tern_tensor *y)
{
    for (int i = 0; i < op->inputs; i++) {
        if (!tern__wants(node, i)) continue;
        for (int n = 0; n < TERN__POINTWISE_INS; n++) {
            tern__operand operand = op->grad[i].in[n];
            if (operand < TERN__IN0 || operand > TERN__Y || node->saved[operand - TERN__IN0].view.data)
                continue;
            tern__save(node, operand - TERN__IN0, operand == TERN__Y ? y : in[operand - TERN__IN0]);
        }
    }
}

tern_tensor *tern__pointwise(tern_scope *scope, const char *func, const tern__pointwise_op *op,
                             tern_tensor *const *inputs, const double *k)
{
    record r = {.op = op};
    tern_tensor *in[TERN__POINTWISE_ARGS] = {0}, *wanting[TERN__POINTWISE_ARGS] = {0};
    tern__view all;
    tern__layout layout;
    memcpy(in, inputs, (size_t)op->inputs * sizeof(*in));
    if (!tern__op_enter(scope, func, op->inputs, op->inputs, in)) return NULL;
    for (int i = 0; k && i < 2; i++) r.attr.k[i] = k[i];
    if (pointwise_check_dtypes(scope, func, op, in) || join_shapes(scope, func, op, in, &all) ||
        settle_layout(scope, op->inputs, in, &all, &layout))
        return NULL;
    tern_tensor *y = pointwise_forward(scope, op, in, &all, layout, &r);
    if (!y) return NULL;
    for (int i = 0; i < op->inputs; i++) wanting[i] = op->grad[i].in[0] ? in[i] : NULL;
    tern__node *node = tern__record(scope, op->name, pointwise_gradient, y, op->inputs, wanting);
    if (!node) return y;
    tern__save_attr(scope, node, &r, sizeof(r));
    pointwise_save(op, node, in, y);
    if (pointwise_can_remake(op, node)) node->remake = pointwise_remake;
    return y;
}
