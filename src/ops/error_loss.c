/* error_loss.c - element-wise losses: each element is compared with its target. */
#include "ops/loss.h"
#include "ops/pointwise.h"

#include <math.h>

#define DY     TERN__DY
#define X      TERN__IN0
#define TARGET TERN__IN1
#define WEIGHT TERN__IN2

/* The gradients of a loss that is symmetric in x and the target. */
#define BOTH_WAYS(kernel)                                                                                    \
    {                                                                                                        \
        {kernel, {DY, X, TARGET}},                                                                           \
        {                                                                                                    \
            kernel,                                                                                          \
            {                                                                                                \
                DY, TARGET, X                                                                                \
            }                                                                                                \
        }                                                                                                    \
    }

static const tern__pointwise_op l1_op = {"l1_loss", TERN__ABS_ERROR, 2,
                                         .grad = BOTH_WAYS(TERN__ABS_ERROR_GRAD)};
static const tern__pointwise_op mse_op = {"mse_loss", TERN__SQUARED_ERROR, 2,
                                          .grad = BOTH_WAYS(TERN__SQUARED_ERROR_GRAD)};
static const tern__pointwise_op smooth_op = {"smooth_l1_loss", TERN__SMOOTH_ERROR, 2,
                                             .grad = BOTH_WAYS(TERN__SMOOTH_ERROR_GRAD)};
static const tern__pointwise_op sharp_op = {"smooth_l1_loss", TERN__ABS_ERROR, 2, /* beta 0 */
                                            .grad = BOTH_WAYS(TERN__ABS_ERROR_GRAD)};
static const tern__pointwise_op probability_op = {"bce_loss", TERN__PROBABILITY_ERROR, 2, .masks = true,
                                                  .grad = {{TERN__PROBABILITY_ERROR_GRAD, {DY, X, TARGET}}}};
static const tern__pointwise_op logit_op = {"bce_with_logits_loss", TERN__LOGIT_ERROR, 3, .masks = true,
                                            .grad = {{TERN__LOGIT_ERROR_GRAD, {DY, X, TARGET, WEIGHT}}}};
static const tern__pointwise_op focal_op = {"focal_loss", TERN__FOCAL_ERROR, 2, .masks = true,
                                            .grad = {{TERN__FOCAL_ERROR_GRAD, {DY, X, TARGET}}}};

static bool loss_fits(tern_scope *scope, const char *func, const tern__pointwise_op *op, const tern_tensor *x,
                      const tern_tensor *target)
{
    char xs[TERN__SHAPE_TEXT], ts[TERN__SHAPE_TEXT];
    if (tern__view_same_shape(&x->view, &target->view)) return true;
    tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: expected input and target of one shape, got %s and %s",
                     op->name, tern__shape_text(&x->view, xs), tern__shape_text(&target->view, ts));
    return false;
}

static tern_tensor *loss(tern_scope *scope, const char *func, const tern__pointwise_op *op,
                         tern_tensor **inputs, const double k[2], tern_reduction reduction)
{
    if (!tern__op_enter(scope, func, 2, 2, inputs) || !loss_fits(scope, func, op, inputs[0], inputs[1]))
        return NULL;
    if ((unsigned)reduction > TERN_LOSS_NONE) {
        tern__scope_fail(scope, func, TERN_E_INVALID, "%s: reduction %d does not exist", op->name,
                         (int)reduction);
        return NULL;
    }
    tern_tensor *each = tern__pointwise(scope, func, op, inputs, k);
    return tern__loss_reduce(scope, each, reduction);
}

tern_tensor *tern_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, tern_reduction reduction)
{
    return loss(scope, __func__, &l1_op, (tern_tensor *[]){x, target}, NULL, reduction);
}

tern_tensor *tern_mse_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, tern_reduction reduction)
{
    return loss(scope, __func__, &mse_op, (tern_tensor *[]){x, target}, NULL, reduction);
}

tern_tensor *tern_smooth_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, double beta,
                                 tern_reduction reduction)
{
    const tern__pointwise_op *op = beta == 0 ? &sharp_op : &smooth_op;
    if (beta >= 0)
        return loss(scope, __func__, op, (tern_tensor *[]){x, target}, (double[]){beta, 0}, reduction);
    if (scope && !scope->error.code)
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "smooth_l1_loss: expected beta >= 0, got %g", beta);
    return NULL;
}

/* Refuses a target that wants a gradient: masks have none. */
static bool is_fixed(tern_scope *scope, const char *func, const tern__pointwise_op *op,
                     const tern_tensor *target)
{
    if (!target->requires_grad) return true;
    tern__scope_fail(scope, func, TERN_E_UNSUPPORTED, "%s: the target wants a gradient; tern_detach it",
                     op->name);
    return false;
}

tern_tensor *tern_bce_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, tern_reduction reduction)
{
    if (!TERN__ENTER(scope, __func__, 2, &x, &target) || !is_fixed(scope, __func__, &probability_op, target))
        return NULL;
    return loss(scope, __func__, &probability_op, (tern_tensor *[]){x, target}, NULL, reduction);
}

tern_tensor *tern_bce_with_logits_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                       tern_tensor *pos_weight, tern_reduction reduction)
{
    if (!TERN__ENTER(scope, __func__, 2, &x, &target) || !is_fixed(scope, __func__, &logit_op, target))
        return NULL;
    if (!pos_weight) pos_weight = tern_full(scope, x->view.dtype, 0, NULL, 1);
    return loss(scope, __func__, &logit_op, (tern_tensor *[]){x, target, pos_weight}, NULL, reduction);
}

/* ---- the focal loss (Lin et al. 2017), from logits ---- */

tern_focal_opts tern_focal_defaults(void)
{
    return (tern_focal_opts){
        .size = sizeof(tern_focal_opts), .gamma = 2, .alpha = 0.25, .ignore_index = -100};
}

static int loss_read_opts(tern_scope *scope, const char *func, const tern_focal_opts *user,
                          tern_focal_opts *opts)
{
    *opts = tern_focal_defaults();
    if (tern__scope_opts(scope, opts, sizeof(*opts), user, func)) return scope->error.code;
    if (!(opts->gamma >= 0 && isfinite(opts->gamma)))
        return tern__scope_fail(scope, func, TERN_E_RANGE, "focal_loss: expected gamma >= 0, got %g",
                                opts->gamma);
    if (!(opts->alpha <= 1))
        return tern__scope_fail(scope, func, TERN_E_RANGE, "focal_loss: expected alpha <= 1, got %g",
                                opts->alpha);
    if (opts->classes || !opts->weight) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_INVALID,
                            "focal_loss: of a mask expected alpha, got weights of classes");
}

static tern_tensor *focal_mask_loss(tern_scope *scope, const char *func, tern_tensor *x, tern_tensor *mask,
                                    const tern_focal_opts *opts)
{
    if (!TERN__ENTER(scope, func, 2, &x, &mask) || !is_fixed(scope, func, &focal_op, mask)) return NULL;
    return loss(scope, func, &focal_op, (tern_tensor *[]){x, mask}, (double[]){opts->gamma, opts->alpha},
                opts->reduction);
}

tern_tensor *tern_focal_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                             const tern_focal_opts *user)
{
    tern_focal_opts opts;
    if (!TERN__ENTER(scope, __func__, 2, &x, &target) || loss_read_opts(scope, __func__, user, &opts))
        return NULL;
    return (opts.classes ? tern__focal_class_loss : focal_mask_loss)(scope, __func__, x, target, &opts);
}
