/* arithmetic.c - add and mul with broadcasting. What an input was repeated over, its gradient is summed over.
 */
#include "kernels/broadcast.h"
#include "ops/broadcast.h"
#include "ops/ops.h"

static const tern__factor_attr one = {1};

static tern__view seen_as(const tern__view *view, const tern__view *like)
{
    return tern__broadcast_view(view, like->ndim, like->shape);
}

/* ---- gradients ---- */

/* Sums `d`, which has the output's shape, into the gradient of input i. */
static int sum_into(tern_scope *scope, tern__node *node, int i, const tern__view *d)
{
    bool add;
    const tern__view *grad = tern__grad_open(scope, node, i, &add);
    if (!grad) return scope->error.code;
    tern__view seen = seen_as(grad, d);
    tern__call call = {.kernel = TERN__SUM, .in = {d}, .out = {&seen}, .add = {add}, .attr = &one};
    return tern__run(scope, &call) ? tern__grad_done(scope, node, i) : scope->error.code;
}

static int add_gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node);
    for (int i = 0; i < 2; i++) {
        if (!tern__wants(node, i)) continue;
        bool same = tern__view_same_shape(&node->in[i]->view, dy);
        int status = same ? tern__grad_give(scope, node, i, dy) : sum_into(scope, node, i, dy);
        if (status) return status;
    }
    return TERN_OK;
}

/* dy times the other input. */
static int mul_gradient_of(tern_scope *scope, tern__node *node, int i)
{
    const tern__view *dy = tern__dy(node);
    tern__view other = seen_as(&node->saved[1 - i].view, dy);
    tern__call call = {.kernel = TERN__MUL, .in = {dy, &other}};
    if (tern__view_same_shape(&node->in[i]->view, dy)) {
        call.out[0] = tern__grad_open(scope, node, i, &call.add[0]);
        if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
        return tern__grad_done(scope, node, i);
    }
    tern__saved product = tern__temporary(scope, dy);
    call.out[0] = &product.view;
    int status = product.storage && tern__run(scope, &call) ? sum_into(scope, node, i, &product.view)
                                                            : scope->error.code;
    tern__saved_drop(&product);
    return status;
}

static int mul_gradient(tern_scope *scope, tern__node *node)
{
    for (int i = 0; i < 2; i++)
        if (tern__wants(node, i) && mul_gradient_of(scope, node, i)) return scope->error.code;
    return TERN_OK;
}

/* ---- forward ---- */

/* A blocked tensor stays so beside one of its own layout and shape, or a single element. */
static bool fits_blocked(const tern__view *a, const tern__view *b)
{
    bool same = a->layout == b->layout && tern__view_same_shape(a, b);
    bool scalar = tern__view_count(b) == 1 && b->layout == TERN__PLAIN && b->ndim <= a->ndim;
    return a->layout == TERN__PLAIN || same || scalar;
}

static int check(tern_scope *scope, const char *func, const char *op, const tern__view *a,
                 const tern__view *b, int *ndim, int64_t shape[TERN_NDIM_MAX])
{
    char as[TERN__SHAPE_TEXT], bs[TERN__SHAPE_TEXT];
    if (a->dtype != b->dtype)
        return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected one dtype, got %s and %s", op,
                                tern_dtype_name(a->dtype), tern_dtype_name(b->dtype));
    if (tern__broadcast_shape(a, b, ndim, shape)) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: %s and %s cannot be broadcast together", op,
                            tern__shape_text(a, as), tern__shape_text(b, bs));
}

static tern_tensor *combine(tern_scope *scope, const char *func, tern__kernel kernel, tern_tensor *in[2])
{
    int ndim;
    int64_t shape[TERN_NDIM_MAX];
    if (!tern__op_enter(scope, func, 2, in[0], in[1])) return NULL;
    if (check(scope, func, tern__kernel_name(kernel), &in[0]->view, &in[1]->view, &ndim, shape)) return NULL;
    if (!fits_blocked(&in[0]->view, &in[1]->view) || !fits_blocked(&in[1]->view, &in[0]->view))
        for (int i = 0; i < 2 && in[i]; i++) in[i] = tern__plain(scope, in[i]);
    if (!in[0] || !in[1]) return NULL;
    bool blocked = in[0]->view.layout != TERN__PLAIN || in[1]->view.layout != TERN__PLAIN;
    tern_tensor *y =
        tern__result(scope, in[0]->view.dtype, blocked ? TERN__BLOCKED16 : TERN__PLAIN, ndim, shape);
    if (!y) return NULL;
    tern__view a = seen_as(&in[0]->view, &y->view), b = seen_as(&in[1]->view, &y->view);
    tern__call call = {.kernel = kernel, .in = {&a, &b}, .out = {&y->view}};
    return tern__run(scope, &call) ? y : NULL;
}

tern_tensor *tern_add(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    tern_tensor *in[2] = {a, b}, *y = combine(scope, __func__, TERN__ADD, in);
    if (y) tern__record(scope, "add", add_gradient, y, 2, in);
    return y;
}

tern_tensor *tern_mul(tern_scope *scope, tern_tensor *a, tern_tensor *b)
{
    tern_tensor *in[2] = {a, b}, *y = combine(scope, __func__, TERN__MUL, in);
    if (!y) return NULL;
    tern__node *node = tern__record(scope, "mul", mul_gradient, y, 2, in);
    for (int i = 0; i < 2; i++)
        if (node && in[1 - i]->requires_grad) tern__save(node, i, in[i]);
    return y;
}
