/* confusion.h - which class was taken for which, over all ranks: accuracy, IoU and Dice of each class, means.
 *
 *     tern_confusion *seen = tern_confusion_new(world, 19, 255, &err);
 *     while (tern_loader_next(loader, scope, &batch)) {
 *         tern_confusion_update(seen, scope, tern_forward(net, scope, batch.x), batch.y);
 *         tern_scope_end(scope, &err);
 *     }
 *     tern_confusion_reduce(seen, &err);                     collective, once an epoch
 *     tern_confusion_mean_iou(seen);                         the same on every rank
 *
 * Everything is a sum of integers, so the numbers are exact and do not depend on how the samples lie on the
 * ranks, if each is there once: a distributed sampler repeats some by default, so that all ranks have as
 * many; for evaluation it is made with opts.pad = false (data.h). Ranks may then have unequal shares, or
 * none.
 *
 * Threads: as its group. */
#ifndef TERN_CONFUSION_H
#define TERN_CONFUSION_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_confusion tern_confusion;

/* Of labels in [0, classes), of which there are 2 to 4096; `ignore_index` is a label that does not count.
 * `group` may be NULL: alone. Borrows it. E_RANGE: classes. Yours: tern_confusion_free. */
TERN_API tern_confusion *tern_confusion_new(tern_group *group, int64_t classes, int64_t ignore_index,
                                            tern_error *err);
TERN_API void tern_confusion_free(tern_confusion *confusion);

/* Counts a batch. x are scores (N, classes, ..), of which the first largest is the prediction (torch.argmax:
 * a NaN is the largest), and label (N, ..); or both are maps of classes of one shape. Labels and maps are u8,
 * i32 or i64. No gradient. E_SHAPE, E_DTYPE; E_RANGE: a label or a prediction that is no class, naming sample
 * (of this batch) and position; then nothing of the batch is counted, and the error is the scope's, too. */
TERN_API int tern_confusion_update(tern_confusion *confusion, tern_scope *scope, tern_tensor *x,
                                   tern_tensor *label);
/* The same of two classes: where x, logits or probabilities, is above `threshold`, 1 is predicted. `mask` is
 * of 0 and 1 (u8, bool, i32 or i64) in x's shape, or (N, ..) for x (N, 1, ..). E_INVALID: other than 2
 * classes. */
TERN_API int tern_confusion_update_mask(tern_confusion *confusion, tern_scope *scope, tern_tensor *x,
                                        tern_tensor *mask, double threshold);

/* Brings together what all ranks have counted since the last one, and begins anew. Collective: one all_reduce
 * of classes^2 i64. E_MISMATCH: ranks with other numbers of classes; those of tern_all_reduce. */
TERN_API int tern_confusion_reduce(tern_confusion *confusion, tern_error *err);

/* ---- numbers as of the last reduce, the same on every rank; 0 before it ---- */

/* How often the class `label` was taken for `prediction`; of all elements; 0 for what is no class. */
TERN_API int64_t tern_confusion_count(const tern_confusion *confusion, int64_t label, int64_t prediction);
TERN_API int64_t tern_confusion_total(const tern_confusion *confusion);

/* The share of elements that are right; NaN if there are none. */
TERN_API double tern_confusion_accuracy(const tern_confusion *confusion);
/* Of a class: |both| / |either|, and 2 |both| / (|labelled| + |predicted|). NaN if it is in neither. */
TERN_API double tern_confusion_iou(const tern_confusion *confusion, int64_t class_index);
TERN_API double tern_confusion_dice(const tern_confusion *confusion, int64_t class_index);
/* The mean of those over the classes that are in labels or predictions; absent ones do not count as 0 or 1.
 * NaN if there is none. */
TERN_API double tern_confusion_mean_iou(const tern_confusion *confusion);
TERN_API double tern_confusion_mean_dice(const tern_confusion *confusion);

#ifdef __cplusplus
}
#endif
#endif
