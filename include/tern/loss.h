/* loss.h - how wrong a result is: ops like the others (ops.h), with a gradient of the result. */
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
 * NaN and the gradient 0. torch.nn.functional.cross_entropy. */
TERN_API tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label,
                                         const tern_cross_entropy_opts *opts);
/* The same of log probabilities, without label_smoothing. torch.nn.functional.nll_loss. */
TERN_API tern_tensor *tern_nll_loss(tern_scope *scope, tern_tensor *logp, tern_tensor *label,
                                    const tern_cross_entropy_opts *opts);

/* ---- of each element and its target ---- */

/* x and target of one shape, not empty. |x - target|; (x - target)^2; and Huber's loss with torch's scale:
 * d^2 / (2 beta) for d = |x - target| < beta, else d - beta / 2. torch.nn.functional.l1_loss, mse_loss,
 * smooth_l1_loss. */
TERN_API tern_tensor *tern_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                   tern_reduction reduction);
TERN_API tern_tensor *tern_mse_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                    tern_reduction reduction);
TERN_API tern_tensor *tern_smooth_l1_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target, double beta,
                                          tern_reduction reduction);
/* -(w target log s + (1 - target) log(1 - s)) with s = sigmoid(x) and w = pos_weight, broadcast (NULL: 1);
 * without overflow. No gradient of the target. torch.nn.functional.binary_cross_entropy_with_logits. */
TERN_API tern_tensor *tern_bce_with_logits_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target,
                                                tern_tensor *pos_weight, tern_reduction reduction);

#ifdef __cplusplus
}
#endif
#endif
