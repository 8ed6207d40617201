/* reduce.c - sum, mean, max and min over some or all dimensions. The kernels view the result with the input's
 * shape, with stride 0 along reduced dimensions. */
#include "ops/loss.h"
#include "kernels/pointwise.h"
#include "kernels/reduce.h"
#include "tensor/host.h"

#include <tern/loss.h>

#include <math.h>

/* ---- which dimensions ---- */

/* The result's shape with every reduced dimension 1, and the shape that the caller gets. */
typedef struct shapes {
    int ndim, kept_ndim;
    int64_t kept[TERN_NDIM_MAX], result[TERN_NDIM_MAX];
    int64_t reduced; /* elements per result         */
} shapes;

/* A scalar counts as one dimension of one element. No dimensions mean all of them. */
static bool dims_mark(const tern__view *x, int count, const int *dims, bool reduced[TERN_NDIM_MAX])
{
    int ndim = TERN__MAX(x->ndim, 1);
    for (int i = 0; i < count; i++) {
        int d = dims[i] < 0 ? dims[i] + ndim : dims[i];
        if (d < 0 || d >= ndim || reduced[d]) return false;
        reduced[d] = true;
    }
    for (int d = 0; d < x->ndim && count == 0; d++) reduced[d] = true;
    return true;
}

static int find_shapes(tern_scope *scope, const char *func, const tern__view *x, int count, const int *dims,
                       bool keep, shapes *s)
{
    bool reduced[TERN_NDIM_MAX] = {false};
    char text[TERN__SHAPE_TEXT];
    if (count < 0)
        return tern__scope_fail(scope, func, TERN_E_RANGE, "expected at least 0 dimensions, got %d", count);
    if (count && !dims)
        return tern__scope_fail(scope, func, TERN_E_INVALID, "the array of dimensions is NULL");
    if (!dims_mark(x, count, dims, reduced))
        return tern__scope_fail(scope, func, TERN_E_RANGE,
                                "expected different dimensions in [-%d, %d) of %s, got %d%s",
                                TERN__MAX(x->ndim, 1), TERN__MAX(x->ndim, 1), tern__shape_text(x, text),
                                dims[0], count > 1 ? " and others" : "");
    *s = (shapes){.ndim = x->ndim, .reduced = 1};
    for (int d = 0; d < x->ndim; d++) {
        s->kept[d] = reduced[d] ? 1 : x->shape[d];
        if (reduced[d]) s->reduced *= x->shape[d];
        if (keep || !reduced[d]) s->result[s->kept_ndim++] = s->kept[d];
    }
    return TERN_OK;
}

/* Views y, which has the kept shape, with x's shape. */
static tern__view reduce_seen_as(const tern__view *y, const shapes *s, const tern__view *x)
{
    tern__view kept = tern__view_make(y->dtype, TERN__PLAIN, s->ndim, s->kept);
    kept.data = y->data;
    return tern__broadcast_view(&kept, x->ndim, x->shape);
}

/* ---- sum and mean ---- */

typedef struct sum_record {
    tern__factor_attr attr;
    shapes shapes;
} sum_record;

/* Broadcasts dy times the factor to the input's shape. */
static int sum_gradient(tern_scope *scope, tern__node *node)
{
    const sum_record *r = node->attr;
    tern__call call = {.kernel = TERN__SCALE, .attr = &(tern__pointwise_attr){{r->attr.factor, 0}}};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0]) return scope->error.code;
    tern__view dy = reduce_seen_as(tern__dy(node), &r->shapes, call.out[0]);
    call.in[0] = &dy;
    return tern__run(scope, &call) ? tern__grad_done(scope, node, 0) : scope->error.code;
}

static tern_tensor *reduce_run(tern_scope *scope, tern__kernel kernel, tern_tensor *x, const shapes *s,
                               tern_dtype dtype, const void *attr)
{
    tern_tensor *y = tern__result(scope, dtype, TERN__PLAIN, s->kept_ndim, s->result);
    if (!y) return NULL;
    tern__view seen = reduce_seen_as(&y->view, s, &x->view);
    tern__call call = {.kernel = kernel, .in = {&x->view}, .out = {&seen}, .attr = attr};
    return tern__run(scope, &call) ? y : NULL;
}

/* Integers are summed as i64. */
static tern_dtype sum_dtype(const tern_tensor *x)
{
    return tern__dtype_is_float(x->view.dtype) ? x->view.dtype : TERN_I64;
}

static tern_tensor *reduce_sum(tern_scope *scope, const char *op, tern_tensor *x, const shapes *s,
                               double factor)
{
    sum_record r = {.attr = {factor}, .shapes = *s};
    tern_tensor *y = reduce_run(scope, TERN__SUM, x, s, sum_dtype(x), &r.attr);
    if (y) tern__save_attr(scope, tern__record(scope, op, sum_gradient, y, 1, &x), &r, sizeof(r));
    return y;
}

tern_tensor *tern_sum_dims(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep)
{
    shapes s;
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (find_shapes(scope, __func__, &x->view, count, dims, keep, &s)) return NULL;
    return reduce_sum(scope, "sum", x, &s, 1);
}

static tern_tensor *mean(tern_scope *scope, const char *func, tern_tensor *x, int count, const int *dims,
                         bool keep)
{
    shapes s;
    if (!TERN__ENTER(scope, func, 1, &x)) return NULL;
    if (!tern__dtype_is_float(x->view.dtype)) {
        tern__scope_fail(scope, func, TERN_E_DTYPE, "mean: expected floating point, got %s",
                         tern_dtype_name(x->view.dtype));
        return NULL;
    }
    if (find_shapes(scope, func, &x->view, count, dims, keep, &s)) return NULL;
    return reduce_sum(scope, "mean", x, &s, 1 / (double)s.reduced);
}

tern_tensor *tern_mean_dims(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep)
{
    return mean(scope, __func__, x, count, dims, keep);
}

tern_tensor *tern_sum(tern_scope *scope, tern_tensor *x)
{
    return tern_sum_dims(scope, x, 0, NULL, false);
}

tern_tensor *tern_mean(tern_scope *scope, tern_tensor *x)
{
    return mean(scope, __func__, x, 0, NULL, false);
}

tern_tensor *tern__loss_reduce(tern_scope *scope, tern_tensor *losses, tern_reduction reduction)
{
    if (!losses || reduction == TERN_LOSS_NONE) return losses;
    if (reduction == TERN_LOSS_SUM) return tern_sum(scope, losses);
    tern_tensor *loss = tern_mean(scope, losses);
    if (loss && loss->node) loss->node->normaliser = (double)tern__view_count(&losses->view);
    return loss;
}

double tern_loss_normaliser(const tern_tensor *loss)
{
    double value = NAN;
    if (!loss || !loss->node) return NAN;
    if (!loss->node->divisor) return loss->node->normaliser;
    return tern__host_item(loss->node->divisor, &value, NULL) ? NAN : value;
}

/* ---- max and min: elements equal to the extreme share the gradient, as in torch.amax ---- */

/* The gradient's kernels in order: where x is the extreme, how many such elements there are, dy divided by
 * that number, and each element's share. */
static int share_out(tern_scope *scope, tern__node *node, const tern__view *is, const tern__view *share)
{
    static const tern__factor_attr one = {1};
    const shapes *s = node->attr;
    const tern__view *x = &node->saved[0].view, *y = &node->saved[1].view, *dy = tern__dy(node);
    tern__view y_seen = reduce_seen_as(y, s, x), share_seen = reduce_seen_as(share, s, x);
    tern__call find = {.kernel = TERN__EQ, .in = {x, &y_seen}, .out = {is}};
    tern__call count = {.kernel = TERN__SUM, .in = {is}, .out = {&share_seen}, .attr = &one};
    tern__call divide = {.kernel = TERN__DIV, .in = {dy, share}, .out = {share}};
    tern__call give = {.kernel = TERN__MUL, .in = {is, &share_seen}};
    give.out[0] = tern__grad_open(scope, node, 0, &give.add[0]);
    bool ran = give.out[0] && tern__run(scope, &find) && tern__run(scope, &count) &&
               tern__run(scope, &divide) && tern__run(scope, &give);
    return ran ? tern__grad_done(scope, node, 0) : scope->error.code;
}

static int extreme_gradient(tern_scope *scope, tern__node *node)
{
    tern__saved is = tern__temporary(scope, &node->saved[0].view);
    tern__saved share = tern__temporary(scope, &node->saved[1].view);
    int status =
        is.storage && share.storage ? share_out(scope, node, &is.view, &share.view) : scope->error.code;
    tern__saved_drop(&is);
    tern__saved_drop(&share);
    return status;
}

static tern_tensor *extreme(tern_scope *scope, const char *func, tern__kernel kernel, tern_tensor *x,
                            int count, const int *dims, bool keep)
{
    shapes s;
    char text[TERN__SHAPE_TEXT];
    if (!TERN__ENTER(scope, func, 1, &x)) return NULL;
    if (find_shapes(scope, func, &x->view, count, dims, keep, &s)) return NULL;
    if (s.reduced == 0) {
        tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: nothing to choose from in %s",
                         tern__kernel_name(kernel), tern__shape_text(&x->view, text));
        return NULL;
    }
    tern_tensor *y =
        (x = tern__dense(scope, x)) ? reduce_run(scope, kernel, x, &s, x->view.dtype, NULL) : NULL;
    if (!y) return NULL;
    tern__node *node = tern__record(scope, tern__kernel_name(kernel), extreme_gradient, y, 1, &x);
    tern__save(node, 0, x);
    tern__save(node, 1, y);
    tern__save_attr(scope, node, &s, sizeof(s));
    return y;
}

tern_tensor *tern_amax(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep)
{
    return extreme(scope, __func__, TERN__AMAX, x, count, dims, keep);
}

tern_tensor *tern_amin(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep)
{
    return extreme(scope, __func__, TERN__AMIN, x, count, dims, keep);
}
