/* metrics.h - metrics over all ranks: the values that each rank has seen become one number, the same on all,
 * in one collective.
 *
 *     tern_metrics_mean(metrics, "loss", tern_item(loss), batch.count);      for every batch
 *     tern_metrics_sum(metrics, "right", right);
 *     tern_metrics_reduce(metrics, &err);                                    collective, once an epoch
 *     tern_metrics_get(metrics, "loss");                                     the same on every rank
 *
 * A name has one kind: mean, sum, min or max. A rank that has added nothing under a name, because it had no
 * batch, does not count in it. Sums are made in f64 in the order of the ranks, so they have the same bits
 * everywhere, and counts are exact up to 2^53.
 *
 * Threads: as its group. */
#ifndef TERN_METRICS_H
#define TERN_METRICS_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_metrics tern_metrics;

/* Makes metrics over the ranks of `group`, which is borrowed; NULL: of this process alone. Yours:
 * tern_metrics_free. */
TERN_API tern_metrics *tern_metrics_new(tern_group *group, tern_error *err);
TERN_API void tern_metrics_free(tern_metrics *metrics);

/* Add a value under a name, for the next reduce. A mean is sum(weight value) / sum(weight): give a batch's
 * mean loss and its number of samples to get the mean over all samples. There is room for 32 names of 31
 * characters. The first mistake (one name more, a longer one, one of another kind, a negative weight) is
 * returned by the next reduce. NULL metrics are ignored. */
TERN_API void tern_metrics_mean(tern_metrics *metrics, const char *name, double value, double weight);
TERN_API void tern_metrics_sum(tern_metrics *metrics, const char *name, double value);
TERN_API void tern_metrics_min(tern_metrics *metrics, const char *name, double value);
TERN_API void tern_metrics_max(tern_metrics *metrics, const char *name, double value);

/* Combines what all ranks have added since the last reduce, and starts anew. Collective: one all_gather of 2
 * KiB per rank. A mistake on any rank is the same error on all, which names the rank; the group stays usable.
 * E_RANGE, E_INVALID: mistakes; E_MISMATCH: a name has different kinds on two ranks; and the errors of
 * tern_all_gather. */
TERN_API int tern_metrics_reduce(tern_metrics *metrics, tern_error *err);

/* Returns a name's value at the last reduce; NaN if there is no such name, or for a mean of weight 0. */
TERN_API double tern_metrics_get(const tern_metrics *metrics, const char *name);
/* Returns a mean's sum of weights, or for other kinds the number of values; 0 if there is no such name. */
TERN_API double tern_metrics_weight(const tern_metrics *metrics, const char *name);
/* Returns name `index`, from 0, of the last reduce: rank 0's names in their order, then those that only other
 * ranks have. NULL after the last. Borrowed until the next reduce. */
TERN_API const char *tern_metrics_name(const tern_metrics *metrics, int index);

/* ---- top-k accuracy ---- */

/* Counts correct predictions: correct[i] is the number of labels that are among the k[i] classes with the
 * largest scores, for scores x (N, C, ..) and labels (N, ..) of u8, i32 or i64; `count` is the number of k.
 * Labels equal to ignore_index do not count. Of equal scores the first class counts as larger (torch.topk
 * takes any of them), and a NaN is the largest. With k >= C every label is correct. To get it over all ranks:
 *
 *     tern_topk_correct(scope, scores, batch.y, -100, 2, (int64_t[]){1, 5}, correct);
 *     tern_metrics_sum(metrics, "top 5", correct[1]);
 *     tern_metrics_sum(metrics, "samples", batch.count);
 *
 * No gradient. Errors are the scope's: E_SHAPE, E_DTYPE, E_INVALID (no k), E_RANGE (a k below 1; or a label
 * that is no class, naming sample and position). */
TERN_API int tern_topk_correct(tern_scope *scope, tern_tensor *x, tern_tensor *label, int64_t ignore_index,
                               int count, const int64_t *k, int64_t *correct);

#ifdef __cplusplus
}
#endif
#endif
