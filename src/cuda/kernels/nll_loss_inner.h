/* nll_loss_inner.h - what the forward and backward kernels of the losses of labels share: operands, labels,
 * and the gradient of a line of log probabilities, which the forward kernel of few labels makes as well. */
#ifndef TERN_SRC_CUDA_KERNELS_NLL_LOSS_INNER_H
#define TERN_SRC_CUDA_KERNELS_NLL_LOSS_INNER_H

#include "cuda/kernels.h"
#include "cuda/kernels/softmax.h"

extern "C" {
#include "kernels/nll_loss.h"
}

#define THREADS TERN__LINE_THREADS

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__row_tile rows;
    tern__lined x, logp, out; /* x: the scores that logp is computed from; out: the gradient */
    const void *label, *weight, *dloss;
    int label_dtype, dloss_dtype;
    const double *weights; /* their sum, the divisor of a mean */
    double smoothing, gamma;
    int64_t ignored, dloss_step;
    bool mean, each, add, add_out;
    tern__judge judge;
    int pieces;
    double *partial; /* (pieces, 2): losses and weights */
    void *loss;
    int loss_dtype;
    double *sum;
    bool add_sum;
} problem;
} // namespace

static __device__ __forceinline__ double weight_of(const problem &p, int64_t c)
{
    return p.weight ? tern__element<double>(p.weight, p.logp.dtype, c) : 1;
}

/* The weight with a type known at compile time. */
template <class S> static __device__ __forceinline__ typename S::R one_weight(const problem &p, int64_t c)
{
    return p.weight ? S::single(p.weight, c) : 1;
}

/* That of a lane of a piece from class c on; any weight for lanes that are not in the line. */
template <class S>
static __device__ __forceinline__ typename S::R lane_weight(const problem &p, int c, int lane)
{
    const int last = (int)p.lines.size - 1, own = c + S::further(lane);
    return one_weight<S>(p, TERN__MAX(0, TERN__MIN(own, last)));
}

static __device__ __forceinline__ int64_t line_start(const problem &p, const tern__lined &l, int64_t line)
{
    return tern__lined_start(l, p.lines, line);
}

static __device__ __forceinline__ int64_t label_at(const problem &p, int64_t line)
{
    int64_t label[1];
    tern__labels_get(p.label, p.label_dtype, line, label);
    return label[0];
}

/* The label's class; -1: ignored. */
static __device__ __forceinline__ int64_t class_of(const problem &p, int64_t line, int64_t label)
{
    return label != p.ignored && tern__is_class(p.judge, line, label) ? label : -1;
}

/* ---- the gradient of a line ---- */

/* The incoming gradient of one label's loss, divided as the loss was. */
static __device__ __forceinline__ double sent(const problem &p, int64_t line)
{
    double d = tern__element<double>(p.dloss, p.dloss_dtype, p.each ? line * p.dloss_step : 0);
    return p.mean ? tern__nll_mean(d, *p.weights) : d;
}

template <int G> static __device__ __forceinline__ double all_weights(const problem &p)
{
    double sum = 0;
    if (!p.weight) return (double)p.lines.size;
    for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G) sum += weight_of(p, c);
    return tern__group_sum<G>(sum);
}

/* A label's gradient on its line. With q of kernels/reference/nll_loss.c times the incoming gradient: q of
 * class c is `each` times its weight, plus `one` for the label's class, and `all` is the sum of q. */
template <class R> struct pull {
    int label;
    R all, each, one;
};

/* `base`: the sum over all classes without the label's own part. */
template <class S>
static __device__ __forceinline__ pull<typename S::R> pull_of(const problem &p, int64_t line, int64_t label,
                                                              int64_t from, double sent, double base)
{
    typedef typename S::R R;
    int64_t c = class_of(p, line, label);
    if (c < 0) return {-1, R(0), R(0), R(0)};
    double one = (1 - p.smoothing) * (double)one_weight<S>(p, c);
    if (sent != 0 && p.gamma != 0)
        sent *= tern__focus_slope(tern__lined_get<double>(p.logp, from + c * p.logp.step), p.gamma);
    double each = p.smoothing != 0 ? sent * p.smoothing / (double)p.lines.size : 0;
    return {(int)c, (R)(sent * (base + one)), (R)each, (R)(sent * one)};
}

/* The part that smoothing adds for all classes together. */
template <int G> static __device__ __forceinline__ double base_of(const problem &p)
{
    return p.smoothing != 0 ? p.smoothing / (double)p.lines.size * all_weights<G>(p) : 0;
}

/* The labels and first stretch of some lines, loaded before the incoming gradient is known. */
template <class S> struct asked {
    int64_t label[S::LINES];
    S logp;

    template <int G> __device__ __forceinline__ void ask(const problem &p, int64_t line)
    {
        const int64_t from = line_start(p, p.logp, line);
        logp.template read<G>(p.logp, from, S::template first<G>(p.logp, from), (int)p.lines.size);
        tern__labels_get(p.label, p.label_dtype, line, label);
    }
};

/* Whether a piece of classes from c on may hold the label: asked once for the neighbours of a line. */
template <class S> static __device__ __forceinline__ bool may_hold(int label, int c)
{
    return S::LINES > 1 || (unsigned)(label - c) < S::LANES;
}

/* Writes the gradient of some lines. `alike`: the incoming gradient if it is the same for all labels. */
template <int G, class S>
static __device__ __forceinline__ void spread(const problem &p, int64_t line, asked<S> &of, double alike,
                                              double base)
{
    typedef typename S::R R;
    const int64_t from = line_start(p, p.logp, line), to = line_start(p, p.out, line);
    const int size = (int)p.lines.size, pace = S::template pace<G>(),
              first = S::template first<G>(p.logp, from);
    pull<R> pulls[S::LINES];
#pragma unroll
    for (int k = 0; k < S::LINES; k++)
        pulls[k] = pull_of<S>(p, line + k, of.label[k], from + k, p.each ? sent(p, line + k) : alike, base);
    for (int i = first; i < size; i += pace) {
        if (i > first) of.logp.template read<G>(p.logp, from, i, size);
        auto *place = S::place(p.out, to, i);
#pragma unroll
        for (int n = 0; n < S::PIECES && S::template has<G>(i, n, size); n++) {
            const int c = S::template at<G>(i, n, 0);
            R slope[S::LANES];
#pragma unroll
            for (int l = 0; l < S::LANES; l++) {
                const pull<R> &its = pulls[S::line(l)];
                slope[l] = its.label < 0 ? R(0) : S::exponential(of.logp.piece[n].get(l)) * its.all;
            }
#pragma unroll
            for (int l = 0; l < S::LANES && may_hold<S>(pulls[0].label, c); l++)
                if (c + S::further(l) == pulls[S::line(l)].label) slope[l] -= pulls[S::line(l)].one;
#pragma unroll
            for (int l = 0; l < S::LANES && p.smoothing != 0; l++)
                slope[l] -= pulls[S::line(l)].each * lane_weight<S>(p, c, l);
            S::put(place, c, size, slope, p.add_out);
            place += S::template leap<G>(p.out);
        }
    }
}

/* ---- operands ---- */

/* Whether both operands, of one dtype, are short rows. */
static bool are_rows(const problem &p, const tern__lined &a, const tern__lined &b)
{
    return tern__rows_short(&p.lines, 1, a.dtype) && tern__lined_rows(&a, &p.lines) &&
           tern__lined_rows(&b, &p.lines);
}

static bool is_plain(const tern__view *view)
{
    return !view || tern__view_is_contiguous(view);
}

static bool problem_of(const tern__call *call, const tern__view *logp, int label, problem *p)
{
    const tern__nll_attr *attr = (const tern__nll_attr *)call->attr;
    const tern__view *labels = call->in[label], *weight = call->in[label + 1];
    *p = {};
    p->lines = tern__class_lines(logp);
    p->label = labels->data;
    p->label_dtype = labels->dtype;
    p->weight = weight ? weight->data : nullptr;
    p->smoothing = attr->smoothing;
    p->gamma = attr->gamma;
    p->ignored = attr->ignored;
    p->mean = attr->mean;
    p->each = attr->each;
    p->judge.fault = tern__cuda_of(call->device)->fault;
    p->judge.site.labels = tern__nll_labels(attr, &p->lines);
    return p->lines.size <= TERN__LINE_LIMIT && is_plain(labels) && is_plain(weight) &&
           (!weight || weight->dtype == logp->dtype) && tern__lined_of(logp, logp->ndim > 1, &p->logp);
}

#endif
