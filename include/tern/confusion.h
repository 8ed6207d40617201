/* confusion.h - a confusion matrix over all ranks: accuracy, IoU and Dice of each class, and their means.
 *
 *     tern_confusion *seen = tern_confusion_new(world, 19, 255, &err);
 *     while (tern_loader_next(loader, scope, &batch)) {
 *         tern_confusion_update(seen, scope, tern_forward(net, scope, batch.x), batch.y);
 *         tern_scope_end(scope, &err);
 *     }
 *     tern_confusion_reduce(seen, &err);                     collective, once an epoch
 *     tern_confusion_mean_iou(seen);                         the same on every rank
 *
 * All counts are integers, so the numbers are exact and do not depend on how the samples are distributed over
 * the ranks, as long as each sample is seen once. A distributed sampler repeats some samples by default, so
 * that all ranks have the same number; for evaluation make it with opts.pad = false (data.h). Ranks may then
 * have different numbers of samples, or none.
 *
 * Threads: as its group. */
#ifndef TERN_CONFUSION_H
#define TERN_CONFUSION_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_confusion tern_confusion;

/* Makes a matrix for labels in [0, classes), 2 to 4096 classes (E_RANGE). Labels equal to `ignore_index` do
 * not count. `group` is borrowed; NULL: this process alone. Yours: tern_confusion_free. */
TERN_API tern_confusion *tern_confusion_new(tern_group *group, int64_t classes, int64_t ignore_index,
                                            tern_error *err);
TERN_API void tern_confusion_free(tern_confusion *confusion);

/* Counts a batch. x are scores (N, classes, ..) and label is (N, ..); the prediction is the class with the
 * largest score, the first if several are equal (torch.argmax: a NaN is the largest). Or x and label are maps
 * of classes of the same shape. Labels and maps are u8, i32 or i64. No gradient. E_SHAPE, E_DTYPE; E_RANGE: a
 * label or prediction that is no class, naming the sample (in this batch) and position. After an error
 * nothing of the batch is counted; the error is also the scope's. */
TERN_API int tern_confusion_update(tern_confusion *confusion, tern_scope *scope, tern_tensor *x,
                                   tern_tensor *label);
/* Does the same for two classes: 1 is predicted where x, logits or probabilities, is above `threshold`.
 * `mask` consists of 0 and 1 (u8, bool, i32 or i64) in x's shape, or (N, ..) for x (N, 1, ..). E_INVALID: the
 * matrix has other than 2 classes. */
TERN_API int tern_confusion_update_mask(tern_confusion *confusion, tern_scope *scope, tern_tensor *x,
                                        tern_tensor *mask, double threshold);

/* Adds up what all ranks have counted since the last reduce, and starts anew. Collective: one all_reduce of
 * classes^2 i64. E_MISMATCH: ranks with different numbers of classes; and the errors of tern_all_reduce. */
TERN_API int tern_confusion_reduce(tern_confusion *confusion, tern_error *err);

/* ---- results of the last reduce, the same on every rank. Before it counts are 0, the others NaN ---- */

/* Return how often class `label` was predicted as `prediction` (0 for a number that is no class), and the
 * count of all elements. */
TERN_API int64_t tern_confusion_count(const tern_confusion *confusion, int64_t label, int64_t prediction);
TERN_API int64_t tern_confusion_total(const tern_confusion *confusion);

/* Returns the share of correct elements; NaN if there are none. */
TERN_API double tern_confusion_accuracy(const tern_confusion *confusion);
/* Return a class's IoU, |both| / |either|, and its Dice, 2 |both| / (|labelled| + |predicted|). NaN if the
 * class occurs in neither labels nor predictions. */
TERN_API double tern_confusion_iou(const tern_confusion *confusion, int64_t class_index);
TERN_API double tern_confusion_dice(const tern_confusion *confusion, int64_t class_index);
/* Return the means of these over the classes that occur in labels or predictions; absent classes do not
 * count. NaN if there is none. */
TERN_API double tern_confusion_mean_iou(const tern_confusion *confusion);
TERN_API double tern_confusion_mean_dice(const tern_confusion *confusion);

#ifdef __cplusplus
}
#endif
#endif
