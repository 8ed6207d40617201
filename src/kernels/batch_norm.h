/* batch_norm.h - attributes of the batch norm kernels. Statistics are the mean and the biased variance of
 * each channel, whether they are the batch's own, those of all ranks or running ones. */
#ifndef TERN_SRC_KERNELS_BATCH_NORM_H
#define TERN_SRC_KERNELS_BATCH_NORM_H

#include "base/host_device.h"
#include "kernels/kernel.h"

typedef struct tern__batch_norm_attr {
    double eps;
    double momentum; /* STATS, MERGE: share of the new statistics in the running ones */
    int64_t relu;    /* APPLY: not 0 for max(., 0) at the end                         */
} tern__batch_norm_attr;

/* SUMS, GRAD: outputs for the gradients of bias and weight. */
enum { TERN__BATCH_NORM_DB = 2, TERN__BATCH_NORM_DW };

/* GRAD on a GPU: the first pass leaves a residual's gradient, which the second one reads in place of dy and
 * y. What is already there, and is added to, cannot be read so. */
static inline bool tern__batch_norm_leaves(const tern__call *grad)
{
    return grad->in[2] && grad->out[1] && !grad->add[1];
}

/* What MERGE takes of each part of a batch is a row [count, mean (C), var (C)], all zeros if it is empty. */
TERN__ANYWHERE int64_t tern__batch_norm_row(int64_t channels)
{
    return 1 + 2 * channels;
}

typedef struct tern__batch_norm_moments {
    double count, mean, var;
} tern__batch_norm_moments;

/* Channel c of all parts together,
 *     mean = sum(n_r mean_r) / N,   var = sum(n_r (var_r + (mean_r - mean)^2)) / N,   N = sum(n_r),
 * in the order of the rows. Nothing cancels, as it would in a sum of squares. */
TERN__ANYWHERE tern__batch_norm_moments tern__batch_norm_merged(const double *rows, int64_t parts,
                                                                int64_t channels, int64_t c)
{
    tern__batch_norm_moments all = {0, 0, 0};
    int64_t length = tern__batch_norm_row(channels);
    const double *end = rows + parts * length;
    for (const double *row = rows; row < end; row += length) all.count += row[0];
    if (all.count == 0) return all;
    for (const double *row = rows; row < end; row += length) all.mean += row[0] / all.count * row[1 + c];
    for (const double *row = rows; row < end; row += length) {
        double d = row[1 + c] - all.mean;
        all.var += row[0] / all.count * (row[1 + channels + c] + d * d);
    }
    return all;
}

#endif
