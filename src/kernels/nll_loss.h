/* nll_loss.h - the attributes of the kernels that compare log probabilities (N, C, ..) or (C) with labels.
 *
 * The loss of one label y is -(1 - smoothing) w[y] logp[y] - smoothing / C sum_c w[c] logp[c], and its weight
 * in the mean is w[y]; an ignored label has neither. */
#ifndef TERN_SRC_KERNELS_NLL_LOSS_H
#define TERN_SRC_KERNELS_NLL_LOSS_H

#include "kernels/lines.h"

typedef struct tern__nll_attr {
    const char *func, *op; /* for errors */
    int64_t ignored;
    double smoothing;
    int64_t mean, each; /* divide by the sum of weights; do not add up */
} tern__nll_attr;

/* A line of classes for each label. */
static inline tern__lines tern__class_lines(const tern__view *logp)
{
    return tern__lines_of(logp, logp->ndim > 1);
}

/* E_RANGE that names the label and its place. */
int tern__label_error(tern_error *err, const tern__nll_attr *attr, const tern__lines *lines, int64_t line,
                      int64_t label);

#endif
