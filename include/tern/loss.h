/* loss.h - how wrong a result is: ops like the others (ops.h), with a gradient of the result.
 *
 * Threads: as the scope. */
#ifndef TERN_LOSS_H
#define TERN_LOSS_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a loss of every element becomes the result: the mean or the sum of all -> (), or each by itself. */
typedef enum tern_reduction { TERN_LOSS_MEAN, TERN_LOSS_SUM, TERN_LOSS_NONE } tern_reduction;

/* What a loss that is a mean was divided by: the number of its elements, of its labels that are not ignored,
 * or the sum of their weights. By it the means of several batches become that of all. NaN for any other
 * tensor, and for a loss made without gradient. */
TERN_API double tern_loss_normaliser(const tern_tensor *loss);

/* ---- classification: x (N, C) and label (N); (C) and (); or (N, C, d1, ..) and (N, d1, ..). Labels are i64,
 * i32 or u8. One outside of [0, C) that is not ignore_index is E_RANGE naming sample and label. ---- */

typedef struct tern_cross_entropy_opts {
    size_t size;
    tern_tensor *weight;      /* (C), of x's dtype, without gradient: of each class; default NULL: 1       */
    int64_t ignore_index;     /* samples of this label do not count; default -100                          */
    double label_smoothing;   /* this share of each label is spread over all classes, in [0, 1]; default 0 */
    tern_reduction reduction; /* the mean is divided by the sum of the labels' weights; default: the mean  */
} tern_cross_entropy_opts;
TERN_API tern_cross_entropy_opts tern_cross_entropy_defaults(void);

/* -weight[label] log softmax(x)[label]; NULL opts for the defaults. If every sample is ignored, the mean is
 * NaN and the gradient 0; if those that are not have labels of weight 0 only, both are NaN, whatever
 * label_smoothing adds. torch.nn.functional.cross_entropy. */
TERN_API tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label,
                                         const tern_cross_entropy_opts *opts);
/* The same of log probabilities, without label_smoothing. torch.nn.functional.nll_loss. */
TERN_API tern_tensor *tern_nll_loss(tern_scope *scope, tern_tensor *logp, tern_tensor *label,
                                    const tern_cross_entropy_opts *opts);

/* ---- of each element and its target, which is of x's shape and dtype or, where it is called a mask, may be
 * of any other dtype too: u8 masks need no copy in f32 ---- */

/* x and target of one shape; the mean of nothing is NaN, its sum 0. |x - target|; (x - target)^2; and Huber's
 * loss with torch's scale: d^2 / (2 beta) for d = |x - target| < beta, else d - beta / 2.
 * torch.nn.functional.l1_loss, mse_loss, smooth_l1_loss. */
TERN_API tern_tensor *tern_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                   tern_reduction reduction);
TERN_API tern_tensor *tern_mse_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                    tern_reduction reduction);
TERN_API tern_tensor *tern_smooth_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, double beta,
                                          tern_reduction reduction);
/* -(target log x + (1 - target) log(1 - x)) of probabilities x, with logarithms of at least -100; NaN for an
 * x outside of [0, 1]. The target is a mask; no gradient of it. tern_bce_with_logits_loss, of what a sigmoid
 * would make probabilities, is more exact. torch.nn.functional.binary_cross_entropy. */
TERN_API tern_tensor *tern_bce_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                    tern_reduction reduction);
/* -(w target log s + (1 - target) log(1 - s)) with s = sigmoid(x) and w = pos_weight, broadcast (NULL: 1);
 * without overflow; the target is a mask. No gradient of the target.
 * torch.nn.functional.binary_cross_entropy_with_logits. */
TERN_API tern_tensor *tern_bce_with_logits_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                                tern_tensor *pos_weight, tern_reduction reduction);

typedef struct tern_focal_opts {
    size_t size;
    bool classes;         /* the target is a map of classes; default false: a mask                        */
    double gamma;         /* >= 0; 0: no focus; default 2                                                 */
    double alpha;         /* of masks: what positives count, negatives 1 - alpha; < 0: both 1; default .25 */
    tern_tensor *weight;  /* of classes: as in tern_cross_entropy; default NULL                           */
    int64_t ignore_index; /* of classes; default -100                                                     */
    tern_reduction reduction; /* default: the mean                                                        */
} tern_focal_opts;
TERN_API tern_focal_opts tern_focal_defaults(void);

/* Cross entropy in which what is known already counts little (Lin et al. 2017, "Focal Loss for Dense Object
 * Detection"): (1 - p)^gamma times it, where p is the probability of the truth. NULL opts for the defaults.
 * Of masks, each element of x a logit and the mean over all of them: torchvision.ops.sigmoid_focal_loss. Of
 * classes: x (N, C, ..) and label (N, ..), means and errors as in tern_cross_entropy, which it is for gamma =
 * 0. E_RANGE: gamma, a label; E_INVALID: a weight of masks. */
TERN_API tern_tensor *tern_focal_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                      const tern_focal_opts *opts);

/* ---- of regions: how far those of x and of the target overlap ---- */

typedef struct tern_dice_opts {
    size_t size;
    bool classes;       /* the target is a map of classes, the probabilities are a softmax over dimension 1;
                           default false: each channel is a mask of its own, and they are sigmoids          */
    bool probabilities; /* x are the probabilities themselves; default false: logits                        */
    bool squared;       /* |P| and |T| are sums of squares, as in V-Net; default false: plain sums          */
    bool over_batch;    /* a region goes through all samples; default false: each sample has its own        */
    double smooth;      /* >= 0; default 1e-5                                                               */
    int64_t ignore_index;     /* elements with this target do not count; default -100     */
    tern_reduction reduction; /* over the regions; default: the mean */
} tern_dice_opts;
TERN_API tern_dice_opts tern_dice_defaults(void);

/* Soft Dice: 1 - (2 |P T| + smooth) / (|P| + |T| + smooth) of every region, where P are probabilities, T is
 * the target, and |.| sums over the region (Milletari et al. 2016, "V-Net"). x is (N, C, ..); a region is a
 * channel of a sample, or of all samples. The target is a mask of 0 and 1 (u8, bool or another integer; or
 * floating point with anything between) of x's shape, or (N, ..) if C is 1; or with `classes` a map (N, ..)
 * of u8, i32 or i64 with labels in [0, C). The result is (), or (N, C) (over_batch: (C)) without reduction:
 * with it some classes can be left out of the mean. A region that is nowhere, in x or target, has loss 0 if
 * smooth > 0, else NaN. NULL opts for the defaults; one pass over x and target, and one for the gradient, of
 * x only.
 *
 * The mean's normaliser is the number of regions N C, so that means of ranks with different batches become
 * that of all. Not so with over_batch: sums over a batch that lies on several ranks are not known to any of
 * them, and what comes out is the mean of each rank's own loss, weighed by its samples.
 * E_SHAPE, E_DTYPE: operands that do not fit; E_RANGE: a label or an element of an integer mask that cannot
 * be, naming sample and position, smooth; E_UNSUPPORTED: a target that wants a gradient. */
TERN_API tern_tensor *tern_dice_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                     const tern_dice_opts *opts);

/* bce_weight times the binary cross entropy of logits plus dice_weight times tern_dice_loss, in the same one
 * pass; with opts->classes cross entropy takes the place of the binary one. Each term is reduced by itself:
 * the mean of one is over the elements (positions) that are not ignored, of the other over regions. So the
 * normaliser, the number of regions, is exact for both where nothing is ignored, else for Dice alone. Errors
 * as above; E_UNSUPPORTED: probabilities; E_INVALID: TERN_LOSS_NONE. */
TERN_API tern_tensor *tern_bce_dice_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                         double bce_weight, double dice_weight, const tern_dice_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
