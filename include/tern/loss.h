/* loss.h - loss functions: ops as in ops.h, with a gradient for the prediction x. Options may be NULL: the
 * defaults.
 *
 * Threads: as the scope. */
#ifndef TERN_LOSS_H
#define TERN_LOSS_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the losses of the elements are combined: their mean -> (), their sum -> (), or not at all. */
typedef enum tern_reduction { TERN_LOSS_MEAN, TERN_LOSS_SUM, TERN_LOSS_NONE } tern_reduction;

/* Returns what a mean loss was divided by: the number of elements, or of labels that are not ignored, or the
 * sum of their weights. With it, the means of several batches can be combined to the mean of all. NaN for any
 * other tensor, and for a loss made without gradient. */
TERN_API double tern_loss_normaliser(const tern_tensor *loss);

/* ---- classification ----
 *
 * Shapes: x (N, C) and label (N); or (C) and (); or (N, C, d1, ..) and (N, d1, ..). Labels are i64, i32 or
 * u8. A label outside [0, C) that is not ignore_index is E_RANGE, which names the sample and the label. */

typedef struct tern_cross_entropy_opts {
    size_t size;
    tern_tensor *weight;      /* (C), in x's dtype, no gradient: each class's weight; default NULL: 1      */
    int64_t ignore_index;     /* samples with this label do not count; default -100                        */
    double label_smoothing;   /* share of each label that is spread over all classes, in [0, 1]; default 0 */
    tern_reduction reduction; /* a mean is divided by the sum of the labels' weights; default: the mean    */
} tern_cross_entropy_opts;
TERN_API tern_cross_entropy_opts tern_cross_entropy_defaults(void);

/* Cross entropy: -weight[label] log softmax(x)[label]. If every sample is ignored, the mean is NaN and the
 * gradient 0. If all others have labels of weight 0, both are NaN, whatever label_smoothing adds.
 * torch.nn.functional.cross_entropy. */
TERN_API tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label,
                                         const tern_cross_entropy_opts *opts);
/* The same for log probabilities, without label_smoothing. torch.nn.functional.nll_loss. */
TERN_API tern_tensor *tern_nll_loss(tern_scope *scope, tern_tensor *logp, tern_tensor *label,
                                    const tern_cross_entropy_opts *opts);
/* Cross entropy of the scores tern_linear(x, weight, bias), for large vocabularies: x (.., I), weight (O, I),
 * bias (O) or NULL, label (..) in [0, O). Values, gradients and errors are those of the two ops up to
 * rounding, but the scores are made some rows at a time: beside the gradients it takes 64 MiB (on a GPU
 * twice), or more for over 131072 classes (128 rows of scores). If a gradient is wanted, the forward pass of
 * a sum or mean makes it, and backward only multiplies; of at most I rows it keeps the scores' gradient,
 * which is no larger than the weight's. TERN_LOSS_NONE, and f16, which holds gradients only after a loss
 * scale, make the scores again in backward. In 16 bits the scores are not rounded, and the loss is f32;
 * opts->weight is f32 or of x's type. Hsu et al. 2024, "Liger Kernel";
 * torch.nn.functional.linear_cross_entropy. */
TERN_API tern_tensor *tern_linear_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                                tern_tensor *bias, tern_tensor *label,
                                                const tern_cross_entropy_opts *opts);

/* ---- elements and targets ----
 *
 * The target has x's shape and dtype. Where it is called a mask, it may have any other dtype too: u8 masks
 * need no copy in f32. */

/* |x - target|; (x - target)^2; and with d = |x - target|, d^2 / (2 beta) if d < beta, else d - beta / 2
 * (Huber's loss at torch's scale). The mean of no elements is NaN, their sum 0. torch.nn.functional.l1_loss,
 * mse_loss, smooth_l1_loss. */
TERN_API tern_tensor *tern_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                   tern_reduction reduction);
TERN_API tern_tensor *tern_mse_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                    tern_reduction reduction);
TERN_API tern_tensor *tern_smooth_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, double beta,
                                          tern_reduction reduction);
/* Binary cross entropy of probabilities: -(target log x + (1 - target) log(1 - x)), with logarithms of at
 * least -100; NaN for an x outside [0, 1]. The target is a mask and gets no gradient. For the result of a
 * sigmoid, tern_bce_with_logits_loss is more exact. torch.nn.functional.binary_cross_entropy. */
TERN_API tern_tensor *tern_bce_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                    tern_reduction reduction);
/* Binary cross entropy of logits: -(w target log s + (1 - target) log(1 - s)), with s = sigmoid(x) and w =
 * pos_weight, which is broadcast (NULL: 1). It does not overflow. The target is a mask and gets no gradient.
 * torch.nn.functional.binary_cross_entropy_with_logits. */
TERN_API tern_tensor *tern_bce_with_logits_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                                tern_tensor *pos_weight, tern_reduction reduction);

typedef struct tern_focal_opts {
    size_t size;
    bool classes;         /* the target is a map of class labels; default false: a mask                   */
    double gamma;         /* >= 0; 0: no focus; default 2                                                 */
    double alpha;         /* masks: weight of positives; negatives have 1 - alpha; < 0: both 1; default .25 */
    tern_tensor *weight;  /* classes: as in tern_cross_entropy; default NULL                              */
    int64_t ignore_index; /* classes: default -100                                                        */
    tern_reduction reduction; /* default: the mean                                                        */
} tern_focal_opts;
TERN_API tern_focal_opts tern_focal_defaults(void);

/* Focal loss (Lin et al. 2017, "Focal Loss for Dense Object Detection"): cross entropy times (1 - p)^gamma,
 * where p is the probability of the true class, so that easy samples count little. With masks each element of
 * x is a logit, and the mean is over all elements: torchvision.ops.sigmoid_focal_loss. With `classes`, x is
 * (N, C, ..) and the target (N, ..); means and errors are those of tern_cross_entropy, which it equals for
 * gamma = 0. E_RANGE: gamma, a label; E_INVALID: a weight with masks. */
TERN_API tern_tensor *tern_focal_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                      const tern_focal_opts *opts);

/* ---- overlap of regions ---- */

typedef struct tern_dice_opts {
    size_t size;
    bool classes;       /* the target is a map of class labels, the probabilities are a softmax over dimension
                           1; default false: each channel is a mask, and they are sigmoids                  */
    bool probabilities; /* x already contains probabilities; default false: logits                          */
    bool squared;       /* |P| and |T| are sums of squares, as in V-Net; default false: plain sums          */
    bool over_batch;    /* a region includes all samples; default false: each sample has its own regions    */
    double smooth;      /* >= 0; default 1e-5                                                               */
    int64_t ignore_index;     /* elements with this target do not count; default -100     */
    tern_reduction reduction; /* over the regions; default: the mean */
} tern_dice_opts;
TERN_API tern_dice_opts tern_dice_defaults(void);

/* Soft Dice loss (Milletari et al. 2016, "V-Net"): for every region 1 - (2 |P T| + smooth) / (|P| + |T| +
 * smooth), where P are the probabilities, T is the target, and |.| is the sum over the region. x is (N, C,
 * ..). A region is a channel of a sample, or of all samples (over_batch). The target is a mask of 0 and 1
 * (u8, bool or another integer; or floating point with values in between) of x's shape, or (N, ..) if C is 1.
 * With `classes` it is a map (N, ..) of u8, i32 or i64 with labels in [0, C). The result is (); without
 * reduction it is (N, C), or (C) with over_batch, so that you can leave classes out of the mean. A region
 * that is empty in x and in the target has loss 0 if smooth > 0, else NaN. It takes one pass over x and
 * target, and one for the gradient of x.
 *
 * The mean's normaliser is the number of regions, N C, so means of ranks with different batches combine to
 * the mean of all. This does not hold for over_batch: no rank knows the sums over a batch that is spread over
 * ranks, and the result is the mean of the ranks' own losses, weighted by their samples.
 *
 * Errors: E_SHAPE, E_DTYPE (operands that do not fit), E_RANGE (a label, or an element of an integer mask,
 * outside its range; the text names sample and position; or smooth), E_UNSUPPORTED (a target that wants a
 * gradient). */
TERN_API tern_tensor *tern_dice_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                     const tern_dice_opts *opts);

/* bce_weight times the binary cross entropy of logits plus dice_weight times tern_dice_loss, in one pass.
 * With opts->classes, cross entropy replaces the binary one. Each term is reduced by itself: the first to a
 * mean over the elements (positions) that are not ignored, the second to a mean over regions. So the
 * normaliser, the number of regions, is exact for both terms if nothing is ignored, otherwise for Dice only.
 * Errors: as tern_dice_loss; E_UNSUPPORTED: probabilities; E_INVALID: TERN_LOSS_NONE. */
TERN_API tern_tensor *tern_bce_dice_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                         double bce_weight, double dice_weight, const tern_dice_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
