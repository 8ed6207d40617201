/* dice_loss.c - region losses: soft Dice, and Dice with cross entropy. The tape keeps the sums over the
 * regions, from which the gradient is computed, and no probabilities. */
#include "kernels/dice_loss.h"
#include "ops/ops.h"

#include <tern/loss.h>

enum { X, TARGET, SUMS }; /* saved tensors */

tern_dice_opts tern_dice_defaults(void)
{
    return (tern_dice_opts){.size = sizeof(tern_dice_opts), .smooth = 1e-5, .ignore_index = -100};
}

static int dice_gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {
        .kernel = TERN__DICE_LOSS_GRAD,
        .in = {tern__dy(node), &node->saved[X].view, &node->saved[TARGET].view, &node->saved[SUMS].view},
        .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

/* ---- checks ---- */

/* A map of labels, or the mask of a single channel, has x's shape without dimension 1. */
static bool is_map_of(const tern__view *x, const tern__view *target)
{
    bool fit = target->ndim == x->ndim - 1;
    for (int d = 0; d < target->ndim && fit; d++) fit = target->shape[d] == x->shape[d + (d > 0)];
    return fit;
}

static int check_shapes(tern_scope *scope, const tern__dice_attr *attr, const tern__view *x,
                        const tern__view *target)
{
    char xs[TERN__SHAPE_TEXT], ts[TERN__SHAPE_TEXT];
    bool fit = x->ndim >= 2;
    if (fit && is_map_of(x, target))
        fit = attr->classes || x->shape[1] == 1;
    else
        fit = fit && !attr->classes && tern__view_same_shape(x, target);
    if (fit) return TERN_OK;
    return tern__scope_fail(scope, attr->func, TERN_E_SHAPE,
                            attr->classes
                                ? "%s: expected input (N, C, ..) and a map (N, ..), got %s and %s"
                                : "%s: expected input (N, C, ..) and a mask of its shape, or (N, ..) if "
                                  "C is 1; got %s and %s",
                            attr->op, tern__shape_text(x, xs), tern__shape_text(target, ts));
}

static int dice_check_dtypes(tern_scope *scope, const tern__dice_attr *attr, tern_dtype x, tern_dtype target)
{
    if (!tern__dtype_is_float(x))
        return tern__scope_fail(scope, attr->func, TERN_E_DTYPE,
                                "%s: expected input of floating point, got %s", attr->op, tern_dtype_name(x));
    if (!attr->classes || target == TERN_U8 || target == TERN_I32 || target == TERN_I64) return TERN_OK;
    return tern__scope_fail(scope, attr->func, TERN_E_DTYPE, "%s: expected labels of i64, i32 or u8, got %s",
                            attr->op, tern_dtype_name(target));
}

static int dice_read_opts(tern_scope *scope, tern__dice_attr *attr, const tern_dice_opts *user)
{
    tern_dice_opts opts = tern_dice_defaults();
    if (tern__scope_opts(scope, &opts, sizeof(opts), user, attr->func)) return scope->error.code;
    if (!(opts.smooth >= 0))
        return tern__scope_fail(scope, attr->func, TERN_E_RANGE, "%s: expected smooth >= 0, got %g", attr->op,
                                opts.smooth);
    if ((unsigned)opts.reduction > TERN_LOSS_NONE)
        return tern__scope_fail(scope, attr->func, TERN_E_INVALID, "%s: reduction %d does not exist",
                                attr->op, (int)opts.reduction);
    attr->classes = opts.classes;
    attr->probabilities = opts.probabilities;
    attr->squared = opts.squared;
    attr->over_batch = opts.over_batch;
    attr->ignored = opts.ignore_index;
    attr->smooth = opts.smooth;
    attr->mean = opts.reduction == TERN_LOSS_MEAN;
    attr->each = opts.reduction == TERN_LOSS_NONE;
    return TERN_OK;
}

/* True if x and target, both plain by now, fit together. */
static bool dice_prepare(tern_scope *scope, tern__dice_attr *attr, const tern_dice_opts *opts,
                         tern_tensor **x, tern_tensor **target)
{
    if (!TERN__ENTER(scope, attr->func, 2, x, target) || dice_read_opts(scope, attr, opts) ||
        check_shapes(scope, attr, &(*x)->view, &(*target)->view) ||
        dice_check_dtypes(scope, attr, (*x)->view.dtype, (*target)->view.dtype))
        return false;
    if ((*target)->requires_grad) {
        tern__scope_fail(scope, attr->func, TERN_E_UNSUPPORTED,
                         "%s: the target wants a gradient; tern_detach it", attr->op);
        return false;
    }
    return (*x = tern__plain(scope, *x)) && (*target = tern__plain(scope, *target));
}

/* ---- forward ---- */

static tern_tensor *dice_loss_of(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                 const tern__dice_attr *attr)
{
    int64_t sums_shape[] = {x->view.shape[0], x->view.shape[1], TERN__OVERLAP};
    const int64_t *regions = attr->over_batch ? &x->view.shape[1] : x->view.shape;
    int ndim = attr->each ? 2 - (int)attr->over_batch : 0;
    tern_tensor *loss = tern__result(scope, x->view.dtype, TERN__PLAIN, ndim, regions);
    tern_tensor *sums = loss ? tern__result(scope, TERN_F64, TERN__PLAIN, 3, sums_shape) : NULL;
    if (!sums) return NULL;
    tern__call call = {.kernel = TERN__DICE_LOSS,
                       .in = {&x->view, &target->view},
                       .out = {&loss->view, &sums->view},
                       .attr = attr};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, attr->op, dice_gradient, loss, 1, &x);
    tern__save(node, X, x);
    tern__save(node, TARGET, target);
    tern__save(node, SUMS, sums);
    tern__save_attr(scope, node, attr, sizeof(*attr));
    if (node && attr->mean) node->normaliser = (double)(sums_shape[0] * sums_shape[1]);
    return loss;
}

tern_tensor *tern_dice_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                            const tern_dice_opts *opts)
{
    tern__dice_attr attr = {.func = __func__, .op = "dice_loss", .dice = 1};
    return dice_prepare(scope, &attr, opts, &x, &target) ? dice_loss_of(scope, x, target, &attr) : NULL;
}

tern_tensor *tern_bce_dice_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, double bce_weight,
                                double dice_weight, const tern_dice_opts *opts)
{
    tern__dice_attr attr = {
        .func = __func__, .op = "bce_dice_loss", .entropy = bce_weight, .dice = dice_weight};
    if (!dice_prepare(scope, &attr, opts, &x, &target)) return NULL;
    if (!attr.probabilities && !attr.each) return dice_loss_of(scope, x, target, &attr);
    if (attr.probabilities)
        tern__scope_fail(scope, __func__, TERN_E_UNSUPPORTED,
                         "bce_dice_loss: expected logits, got probabilities");
    else
        tern__scope_fail(scope, __func__, TERN_E_INVALID,
                         "bce_dice_loss: two losses have no common elements: expected a mean or a sum");
    return NULL;
}
