/* cross_entropy.c - the classification losses. Cross entropy is nll_loss of a log softmax, with one kernel
 * and one gradient for both. The tape keeps the sum of the labels' weights, by which a mean is divided. */
#include "kernels/nll_loss.h"
#include "ops/loss.h"

enum { LOGP, LABEL, WEIGHT, WEIGHTS, SLOPE }; /* saved tensors; WEIGHTS is the sum */

tern_cross_entropy_opts tern_cross_entropy_defaults(void)
{
    return (tern_cross_entropy_opts){.size = sizeof(tern_cross_entropy_opts), .ignore_index = -100};
}

/* ---- gradients ---- */

static const tern__view *saved(const tern__node *node, int slot)
{
    return node->saved[slot].view.data ? &node->saved[slot].view : NULL;
}

static int nll_gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__NLL_LOSS_GRAD,
                       .in = {tern__dy(node), saved(node, LABEL), saved(node, WEIGHT), saved(node, WEIGHTS)},
                       .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

static int cross_entropy_gradient(tern_scope *scope, tern__node *node)
{
    if (saved(node, SLOPE) && tern__dy_is_one(scope, node))
        return tern__grad_give_saved(scope, node, 0, SLOPE);
    tern__call call = {.kernel = TERN__CROSS_ENTROPY_GRAD,
                       .in = {tern__dy(node), saved(node, LOGP), saved(node, LABEL), saved(node, WEIGHT),
                              saved(node, WEIGHTS)},
                       .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

/* ---- checks ---- */

/* The label has the input's shape without the class dimension, which is dimension 1, or the only one. */
static bool entropy_shapes_fit(const tern__view *x, const tern__view *label)
{
    bool fit = x->ndim >= 1 && label->ndim == x->ndim - 1;
    for (int d = 0; d < label->ndim && fit; d++) fit = label->shape[d] == x->shape[d + (d > 0)];
    return fit;
}

static int check_shapes(tern_scope *scope, const char *func, const char *op, const tern__view *x,
                        const tern__view *label)
{
    char xs[TERN__SHAPE_TEXT], ls[TERN__SHAPE_TEXT];
    if (entropy_shapes_fit(x, label)) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_SHAPE,
                            "%s: expected input (N, C, ..) and label (N, ..), or (C) and (), got %s and %s",
                            op, tern__shape_text(x, xs), tern__shape_text(label, ls));
}

int tern__entropy_check_dtypes(tern_scope *scope, const char *func, const char *op, tern_dtype x,
                               tern_dtype label)
{
    if (!tern__dtype_is_float(x))
        return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected input of floating point, got %s", op,
                                tern_dtype_name(x));
    if (label == TERN_I64 || label == TERN_I32 || label == TERN_U8) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected labels of i64, i32 or u8, got %s", op,
                            tern_dtype_name(label));
}

int tern__entropy_check_weight(tern_scope *scope, const char *func, const char *op, int64_t classes,
                               tern_dtype dtype, const tern_tensor *weight)
{
    char have[TERN__SHAPE_TEXT];
    const tern__view *w = &weight->view;
    if (w->ndim != 1 || w->shape[0] != classes)
        return tern__scope_fail(scope, func, TERN_E_SHAPE,
                                "%s: expected a weight for each of %lld classes, got %s", op,
                                (long long)classes, tern__shape_text(w, have));
    if (w->dtype != dtype)
        return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected weights of %s, got %s", op,
                                tern_dtype_name(dtype), tern_dtype_name(w->dtype));
    if (!weight->requires_grad) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_UNSUPPORTED,
                            "%s: the weight wants a gradient; tern_detach it", op);
}

int tern__entropy_read_opts(tern_scope *scope, const char *func, const char *op,
                            const tern_cross_entropy_opts *user, tern_cross_entropy_opts *opts)
{
    *opts = tern_cross_entropy_defaults();
    if (tern__scope_opts(scope, opts, sizeof(*opts), user, func)) return scope->error.code;
    if (!(opts->label_smoothing >= 0 && opts->label_smoothing <= 1))
        return tern__scope_fail(scope, func, TERN_E_RANGE, "%s: expected a label_smoothing in [0, 1], got %g",
                                op, opts->label_smoothing);
    if ((unsigned)opts->reduction <= TERN_LOSS_NONE) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_INVALID, "%s: reduction %d does not exist", op,
                            (int)opts->reduction);
}

/* ---- forward ---- */

/* The operands, dense, and the kernels' attributes. */
typedef struct problem {
    tern_tensor *x, *label, *weight;
    tern__nll_attr attr;
} problem;

static int entropy_prepare(tern_scope *scope, const tern_cross_entropy_opts *user, problem *p)
{
    const char *func = p->attr.func, *op = p->attr.op;
    tern_cross_entropy_opts opts;
    if (!TERN__ENTER(scope, func, 2, &p->x, &p->label)) return scope ? scope->error.code : TERN_E_INVALID;
    if (tern__entropy_read_opts(scope, func, op, user, &opts)) return scope->error.code;
    p->weight = opts.weight;
    if (!TERN__ENTER(scope, func, 2, &p->x, &p->label, &p->weight) ||
        check_shapes(scope, func, op, &p->x->view, &p->label->view) ||
        tern__entropy_check_dtypes(scope, func, op, p->x->view.dtype, p->label->view.dtype) ||
        (p->weight && tern__entropy_check_weight(scope, func, op, p->x->view.shape[p->x->view.ndim > 1],
                                                 p->x->view.dtype, p->weight)))
        return scope->error.code;
    p->attr.ignored = opts.ignore_index;
    p->attr.smoothing = opts.label_smoothing;
    p->attr.mean = opts.reduction == TERN_LOSS_MEAN;
    p->attr.each = opts.reduction == TERN_LOSS_NONE;
    p->x = tern__plain(scope, p->x);
    p->label = p->x ? tern__plain(scope, p->label) : NULL;
    if (p->weight && p->label) p->weight = tern__plain(scope, p->weight);
    return scope->error.code;
}

static void entropy_drop(void *storage)
{
    tern__storage_drop(storage);
}

/* The divisor stays in the device's memory: only who asks for it waits for the device. */
void tern__normaliser_keep(tern_scope *scope, tern__node *node, tern_tensor *weights)
{
    if (!tern__memory_device(weights->view.data))
        node->normaliser = tern__view_get(&weights->view, 0);
    else if (!tern__scope_borrow(scope, entropy_drop, weights->storage)) {
        tern__storage_hold(weights->storage);
        node->divisor = &weights->view;
    }
}

/* A kernel's results. `logp` is NULL where p->x is the log softmax already. `slope`, the gradient for a loss
 * whose own gradient is 1, is mostly NULL. */
typedef struct results {
    tern_tensor *loss, *weights, *logp, *slope;
} results;

/* On a GPU a small gradient costs little more than its launch. So the loss's kernel computes it too, for the
 * case that backward begins at this loss; a loss that is scaled or added to others cannot use it. */
static bool begins_with_slope(const tern_scope *scope, const problem *p)
{
    const tern__view *x = &p->x->view;
    return tern__memory_device(x->data) && tern__is_taped(scope, p->x) && !p->attr.each &&
           tern__nll_is_short(x);
}

static tern_tensor *entropy_record(tern_scope *scope, const problem *p, const results *r,
                                   tern__gradient_fn gradient)
{
    tern__node *node = tern__record(scope, p->attr.op, gradient, r->loss, 1, &p->x);
    tern__save(node, LOGP, r->logp);
    tern__save(node, LABEL, p->label);
    tern__save(node, WEIGHT, p->weight);
    tern__save(node, WEIGHTS, r->weights);
    tern__save(node, SLOPE, r->slope);
    tern__save_attr(scope, node, &p->attr, sizeof(p->attr));
    if (node && p->attr.mean) tern__normaliser_keep(scope, node, r->weights);
    return scope->error.code ? NULL : r->loss;
}

/* Computes the loss and records `gradient` as the gradient of p->x. */
static tern_tensor *entropy_loss_of(tern_scope *scope, const problem *p, tern__kernel kernel,
                                    tern__gradient_fn gradient)
{
    const tern__view *x = &p->x->view, *label = &p->label->view;
    results r = {0};
    r.loss = tern__result(scope, x->dtype, TERN__PLAIN, p->attr.each ? label->ndim : 0, label->shape);
    if (r.loss) r.weights = tern__result(scope, TERN_F64, TERN__PLAIN, 0, NULL);
    if (r.weights && kernel == TERN__CROSS_ENTROPY)
        r.logp = tern__result(scope, x->dtype, TERN__PLAIN, x->ndim, x->shape);
    if (r.logp && begins_with_slope(scope, p))
        r.slope = tern__result(scope, x->dtype, TERN__PLAIN, x->ndim, x->shape);
    if (scope->error.code) return NULL;
    tern__call call = {.kernel = kernel,
                       .in = {x, label, p->weight ? &p->weight->view : NULL},
                       .out = {&r.loss->view, &r.weights->view, r.logp ? &r.logp->view : NULL,
                               r.slope ? &r.slope->view : NULL},
                       .attr = &p->attr};
    return tern__run(scope, &call) ? entropy_record(scope, p, &r, gradient) : NULL;
}

tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label,
                                const tern_cross_entropy_opts *opts)
{
    problem p = {.x = x, .label = label, .attr = {.func = __func__, .op = "cross_entropy"}};
    if (entropy_prepare(scope, opts, &p)) return NULL;
    return entropy_loss_of(scope, &p, TERN__CROSS_ENTROPY, cross_entropy_gradient);
}

tern_tensor *tern_nll_loss(tern_scope *scope, tern_tensor *logp, tern_tensor *label,
                           const tern_cross_entropy_opts *opts)
{
    problem p = {.x = logp, .label = label, .attr = {.func = __func__, .op = "nll_loss"}};
    if (entropy_prepare(scope, opts, &p)) return NULL;
    if (p.attr.smoothing == 0) return entropy_loss_of(scope, &p, TERN__NLL_LOSS, nll_gradient);
    tern__scope_fail(scope, __func__, TERN_E_RANGE, "nll_loss: expected no label_smoothing, got %g",
                     p.attr.smoothing);
    return NULL;
}

tern_tensor *tern__focal_class_loss(tern_scope *scope, const char *func, tern_tensor *x, tern_tensor *label,
                                    const tern_focal_opts *opts)
{
    problem p = {.x = x, .label = label, .attr = {.func = func, .op = "focal_loss", .gamma = opts->gamma}};
    tern_cross_entropy_opts entropy = tern_cross_entropy_defaults();
    entropy.weight = opts->weight;
    entropy.ignore_index = opts->ignore_index;
    entropy.reduction = opts->reduction;
    if (entropy_prepare(scope, &entropy, &p)) return NULL;
    return entropy_loss_of(scope, &p, TERN__CROSS_ENTROPY, cross_entropy_gradient);
}
