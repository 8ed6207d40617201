/* nll_loss.c - the losses of labels under log probabilities (torch.nn.functional.nll_loss, cross_entropy).
 *
 * The second result is the sum of the labels' weights, by which a mean is divided. With q[c] = (1 -
 * smoothing) w[y] [c = y] + smoothing / C w[c], the gradient of one label's loss is -q with respect to the
 * log probabilities, and exp(logp) sum q - q with respect to the scores. */
#include "kernels/nll_loss.h"
#include "kernels/reference/reference.h"

#include <math.h>

typedef struct problem {
    const tern__view *logp, *label, *weight;
    const tern__nll_attr *attr;
    tern__lines lines;
} problem;

static problem nll_problem_of(const tern__call *call, const tern__view *logp, int label)
{
    return (problem){logp, call->in[label], call->in[label + 1], call->attr, tern__class_lines(logp)};
}

static double nll_weight_of(const problem *p, int64_t class)
{
    return p->weight ? tern__view_get(p->weight, class) : 1;
}

static int64_t nll_place(const problem *p, int64_t line, int64_t class)
{
    return tern__line_start(&p->lines, line) + class * p->lines.inner;
}

static double q_of(const problem *p, int64_t label, int64_t class)
{
    double smoothing = p->attr->smoothing;
    double q = smoothing ? smoothing / (double)p->lines.size * nll_weight_of(p, class) : 0;
    return class == label ? q + (1 - smoothing) * nll_weight_of(p, class) : q;
}

/* ---- forward ---- */

static double nll_loss_of(const problem *p, int64_t line, int64_t label)
{
    double loss = 0;
    for (int64_t c = 0; c < p->lines.size; c++) {
        double q = q_of(p, label, c);
        if (c == label || p->attr->smoothing) loss -= q * tern__view_get(p->logp, nll_place(p, line, c));
    }
    return loss * tern__focus(tern__view_get(p->logp, nll_place(p, line, label)), p->attr->gamma);
}

int tern__reference_nll_loss(const tern__call *call)
{
    problem p = nll_problem_of(call, call->in[0], 1);
    double loss = 0, weight = 0;
    for (int64_t i = 0; i < p.lines.outer * p.lines.inner; i++) {
        int64_t label = tern__view_get_int(p.label, i);
        bool ignored = label == p.attr->ignored;
        if (!ignored && (label < 0 || label >= p.lines.size))
            return tern__label_error(call->err, tern__nll_labels(p.attr, &p.lines), i, label);
        double one = ignored ? 0 : nll_loss_of(&p, i, label);
        if (p.attr->each) tern__reference_put(call, 0, i, one);
        loss += one;
        weight += ignored ? 0 : nll_weight_of(&p, label);
    }
    if (!p.attr->each) tern__reference_put(call, 0, 0, p.attr->mean ? tern__nll_mean(loss, weight) : loss);
    tern__reference_put(call, 1, 0, weight);
    return TERN_OK;
}

int tern__reference_label_weights(const tern__call *call)
{
    const tern__view *label = call->in[0], *weight = call->in[1];
    const tern__label_weights_attr *attr = call->attr;
    const tern__labels labels = {attr->nll.func, attr->nll.op, NULL, attr->classes, 1};
    int64_t count = tern__view_count(label);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t class = tern__view_get_int(label, i);
        if (class == attr->nll.ignored) continue;
        if (class < 0 || class >= attr->classes) return tern__label_error(call->err, labels, i, class);
        sum += weight ? tern__view_get(weight, class) : 1;
    }
    tern__reference_put(call, 0, 0, sum);
    return TERN_OK;
}

int tern__reference_cross_entropy(const tern__call *call)
{
    return tern__cross_entropy_by(call, tern__reference_log_softmax, tern__reference_nll_loss,
                                  tern__reference_cross_entropy_grad);
}

/* ---- gradients ---- */

/* The incoming gradient of one label's loss, divided as the loss was. */
static double sent(const problem *p, const tern__view *dloss, const tern__view *weights, int64_t line)
{
    double d = tern__view_get(dloss, p->attr->each ? line : 0);
    return p->attr->mean ? tern__nll_mean(d, tern__view_get(weights, 0)) : d;
}

int tern__reference_nll_loss_grad(const tern__call *call)
{
    problem p = nll_problem_of(call, call->out[0], 1);
    for (int64_t i = 0; i < p.lines.outer * p.lines.inner; i++) {
        int64_t label = tern__view_get_int(p.label, i);
        double d = label == p.attr->ignored ? 0 : sent(&p, call->in[0], call->in[3], i);
        for (int64_t c = 0; c < p.lines.size; c++)
            tern__reference_put(call, 0, nll_place(&p, i, c), c == label ? -d * nll_weight_of(&p, c) : 0);
    }
    return TERN_OK;
}

int tern__reference_cross_entropy_grad(const tern__call *call)
{
    problem p = nll_problem_of(call, call->in[1], 2);
    for (int64_t i = 0; i < p.lines.outer * p.lines.inner; i++) {
        int64_t label = tern__view_get_int(p.label, i);
        double d = label == p.attr->ignored ? 0 : sent(&p, call->in[0], call->in[4], i), all = 0;
        if (d != 0) d *= tern__focus_slope(tern__view_get(p.logp, nll_place(&p, i, label)), p.attr->gamma);
        for (int64_t c = 0; c < p.lines.size; c++) all += q_of(&p, label, c);
        for (int64_t c = 0; c < p.lines.size; c++) {
            double share = exp(tern__view_get(p.logp, nll_place(&p, i, c))) * all - q_of(&p, label, c);
            tern__reference_put(call, 0, nll_place(&p, i, c), d * share);
        }
    }
    return TERN_OK;
}
