/* metrics.h - numbers over all ranks: what each has seen becomes one number for all, in one collective.
 *
 *     tern_metrics_mean(metrics, "loss", tern_item(loss), batch.count);      as often as there are batches
 *     tern_metrics_sum(metrics, "right", right);
 *     tern_metrics_reduce(metrics, &err);                                    collective, once an epoch
 *     tern_metrics_get(metrics, "loss");                                     the same on every rank
 *
 * A name has one kind. A rank that has said nothing under a name, because it had no batch, takes no part in
 * it. Sums are made in f64 in the order of the ranks, so they have the same bits everywhere, and counts are
 * exact up to 2^53.
 *
 * Threads: as its group. */
#ifndef TERN_METRICS_H
#define TERN_METRICS_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_metrics tern_metrics;

/* `group` may be NULL: alone. Borrows it. Yours: tern_metrics_free. */
TERN_API tern_metrics *tern_metrics_new(tern_group *group, tern_error *err);
TERN_API void tern_metrics_free(tern_metrics *metrics);

/* What these are told counts from the next reduce on. There is room for 32 names of 31 characters; the first
 * mistake, one more name, a longer one, one of another kind or a weight below 0, is what reduce returns. A
 * mean is sum(weight value) / sum(weight): a batch's mean loss with its number of samples as the weight makes
 * the mean over all samples. NULL metrics are ignored. */
TERN_API void tern_metrics_mean(tern_metrics *metrics, const char *name, double value, double weight);
TERN_API void tern_metrics_sum(tern_metrics *metrics, const char *name, double value);
TERN_API void tern_metrics_min(tern_metrics *metrics, const char *name, double value);
TERN_API void tern_metrics_max(tern_metrics *metrics, const char *name, double value);

/* Brings together what all ranks have told since the last one, and begins anew. Collective: one all_gather of
 * 2 KiB a rank. A mistake on any rank is the same error on all, which names the rank, and the group goes on.
 * E_RANGE, E_INVALID: mistakes; E_MISMATCH: a name of different kinds on two ranks; those of tern_all_gather.
 */
TERN_API int tern_metrics_reduce(tern_metrics *metrics, tern_error *err);

/* The value at the last reduce; NaN if there is no such name, or for a mean of weight 0. */
TERN_API double tern_metrics_get(const tern_metrics *metrics, const char *name);
/* How much it counts: a mean's sum of weights, else how often it was told. 0 if there is no such name. */
TERN_API double tern_metrics_weight(const tern_metrics *metrics, const char *name);
/* The names of the last reduce, in the order of rank 0's and then of what others had besides; NULL behind the
 * last. Borrowed, until the next reduce. */
TERN_API const char *tern_metrics_name(const tern_metrics *metrics, int index);

/* ---- top-k accuracy ---- */

/* correct[i] = how many of the labels are among the k[i] classes with the largest scores, of x (N, C, ..) and
 * label (N, ..) of u8, i32 or i64; ignore_index does not count. Where scores are equal the class that stands
 * first goes before (torch.topk takes any of them), and a NaN is the largest. For k >= C all are among them.
 * To have it over all ranks:
 *
 *     tern_topk_correct(scope, scores, batch.y, -100, 2, (int64_t[]){1, 5}, correct);
 *     tern_metrics_sum(metrics, "top 5", correct[1]);
 *     tern_metrics_sum(metrics, "samples", batch.count);
 *
 * No gradient. E_SHAPE, E_DTYPE, E_INVALID: no k; E_RANGE: a k below 1, or a label that is no class, naming
 * sample and position. The error is the scope's. */
TERN_API int tern_topk_correct(tern_scope *scope, tern_tensor *x, tern_tensor *label, int64_t ignore_index,
                               int count, const int64_t *k, int64_t *correct);

#ifdef __cplusplus
}
#endif
#endif
