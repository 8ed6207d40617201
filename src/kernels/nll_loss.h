/* nll_loss.h - the attributes of the kernels that compare log probabilities (N, C, ..) or (C) with labels.
 *
 * The loss of a label y is -(1 - smoothing) w[y] logp[y] - smoothing / C sum_c w[c] logp[c], and its
 * weight in the mean is w[y]. An ignored label has neither. Focal loss multiplies this, without smoothing,
 * by (1 - exp(logp[y]))^gamma. */
#ifndef TERN_SRC_KERNELS_NLL_LOSS_H
#define TERN_SRC_KERNELS_NLL_LOSS_H

#include "base/host_device.h"
#include "kernels/kernel.h"
#include "kernels/labels.h"
#include "kernels/lines.h"

#include <math.h>

typedef struct tern__nll_attr {
    const char *func, *op; /* for errors */
    int64_t ignored;
    double smoothing, gamma;
    int64_t mean, each; /* divide by the sum of weights; one loss per label instead of a sum */
} tern__nll_attr;

/* LABEL_WEIGHTS also checks that labels which are not ignored are in [0, classes). */
typedef struct tern__label_weights_attr {
    tern__nll_attr nll;
    int64_t classes;
} tern__label_weights_attr;

/* Each label has a line of classes. */
static inline tern__lines tern__class_lines(const tern__view *logp)
{
    return tern__lines_of(logp, logp->ndim > 1);
}

/* Few enough labels and classes that one block of a GPU takes all, with a thread per label. */
enum { TERN__NLL_LABELS = 256, TERN__NLL_CLASSES = 32 };
static inline bool tern__nll_is_short(const tern__view *x)
{
    tern__lines lines = tern__class_lines(x);
    return lines.size <= TERN__NLL_CLASSES && lines.outer * lines.inner <= TERN__NLL_LABELS;
}

/* Divides a loss, or its incoming gradient, by the sum of the labels' weights. If the sum is 0 there is no
 * mean, not even of the part that smoothing adds: NaN, as in PyTorch. */
TERN__ANYWHERE double tern__nll_mean(double value, double weights)
{
    return weights != 0 ? value / weights : (double)NAN;
}

/* The factor by which focal loss multiplies a label's loss, and the factor for the derivative with respect
 * to -log p. With q = 1 - p these are q^gamma and q^gamma - gamma p log p q^(gamma - 1); the latter is 0
 * at q = 0, or 1 for gamma = 0. */
TERN__ANYWHERE double tern__focus(double logp, double gamma)
{
    return gamma == 0 ? 1 : pow(fmax(-expm1(logp), 0.0), gamma);
}
TERN__ANYWHERE double tern__focus_slope(double logp, double gamma)
{
    double q = -expm1(logp);
    if (gamma == 0 || q <= 0) return gamma == 0;
    return pow(q, gamma) * (1 - gamma * exp(logp) * logp / q);
}

static inline tern__labels tern__nll_labels(const tern__nll_attr *attr, const tern__lines *lines)
{
    return (tern__labels){attr->func, attr->op, NULL, lines->size, lines->inner};
}

/* CROSS_ENTROPY as a sequence of kernels. */
static inline int tern__cross_entropy_by(const tern__call *call, tern__kernel_fn log_softmax,
                                         tern__kernel_fn nll_loss, tern__kernel_fn gradient)
{
    float one = 1;
    tern__view sent = tern__view_make(TERN_F32, TERN__PLAIN, 0, NULL);
    tern__dim_attr dim = {call->in[0]->ndim > 1};
    tern__call first = {.device = call->device,
                        .kernel = TERN__LOG_SOFTMAX,
                        .in = {call->in[0]},
                        .out = {call->out[2]},
                        .add = {call->add[2]},
                        .attr = &dim,
                        .err = call->err};
    tern__call second = *call;
    second.kernel = TERN__NLL_LOSS;
    second.in[0] = call->out[2];
    second.out[2] = second.out[3] = NULL;
    sent.data = &one;
    tern__call third = {.device = call->device,
                        .kernel = TERN__CROSS_ENTROPY_GRAD,
                        .in = {&sent, call->out[2], call->in[1], call->in[2], call->out[1]},
                        .out = {call->out[3]},
                        .add = {call->add[3]},
                        .attr = call->attr,
                        .err = call->err};
    int status = log_softmax(&first);
    if (!status) status = nll_loss(&second);
    return status || !call->out[3] ? status : gradient(&third);
}

#endif
