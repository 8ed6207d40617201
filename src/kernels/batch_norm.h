/* batch_norm.h - attributes of the batch norm kernels. Statistics are the mean and the biased variance of
 * each channel, of the batch, of all ranks' batches, or running ones. Those of a batch are f64 whatever x is:
 * the f32 next to a mean far from zero may be further from it than the values are. */
#ifndef TERN_SRC_KERNELS_BATCH_NORM_H
#define TERN_SRC_KERNELS_BATCH_NORM_H

#include "base/host_device.h"
#include "kernels/kernel.h"

#include <math.h>

typedef struct tern__batch_norm_attr {
    double eps;
    double momentum; /* STATS, MERGE: weight of the new statistics in the running ones */
    int64_t relu;    /* APPLY: not 0 for max(., 0) at the end                         */
} tern__batch_norm_attr;

/* SUMS, GRAD: outputs for the gradients of bias and weight. */
enum { TERN__BATCH_NORM_DB = 2, TERN__BATCH_NORM_DW };

/* GRAD on a GPU: the first pass writes the residual's gradient, which the second pass reads instead of dy
 * and y. It cannot be read if it was added to something. */
static inline bool tern__batch_norm_leaves(const tern__call *grad)
{
    return grad->in[2] && grad->out[1] && !grad->add[1];
}

/* A batch's variance. One that is too large is NaN: divided by an infinite deviation all values would be 0,
 * and nothing would show it. */
TERN__ANYWHERE double tern__norm_variance(double var)
{
    return isinf(var) ? (double)NAN : var;
}

/* MERGE's input for each part of a batch is a row [count, mean (C), var (C)], all zeros for an empty part. */
TERN__ANYWHERE int64_t tern__batch_norm_row(int64_t channels)
{
    return 1 + 2 * channels;
}

typedef struct tern__batch_norm_moments {
    double count, mean, var;
} tern__batch_norm_moments;

/* Merges channel c of all parts, in the order of the rows: mean = m + sum(n_r (mean_r - m)) / N, where m is
 * that of the first part with values, var = sum(n_r (var_r + (mean_r - mean)^2)) / N, N = sum(n_r). Unlike
 * in a sum of squares, nothing cancels, and the mean of equal means is the same number. */
TERN__ANYWHERE tern__batch_norm_moments tern__batch_norm_merged(const double *rows, int64_t parts,
                                                                int64_t channels, int64_t c)
{
    tern__batch_norm_moments all = {0, 0, 0};
    int64_t length = tern__batch_norm_row(channels);
    const double *end = rows + parts * length;
    double first = 0;
    for (const double *row = rows; row < end; row += length) {
        if (all.count == 0) first = row[1 + c];
        all.count += row[0];
    }
    if (all.count == 0) return all;
    all.mean = first;
    for (const double *row = rows; row < end; row += length)
        all.mean += row[0] / all.count * (row[1 + c] - first);
    for (const double *row = rows; row < end; row += length) {
        double d = row[1 + c] - all.mean;
        all.var += row[0] / all.count * (row[1 + channels + c] + d * d);
    }
    return all;
}

#endif
