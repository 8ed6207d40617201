/* nll_loss.cu - the losses of labels under log probabilities and their gradients (kernels/nll_loss.h).
 *
 * A thread has some labels of its own and reads one log probability of each; with smoothing it reads them
 * all, or a warp does where they are neighbours. For cross entropy whoever has a label makes its log
 * probabilities first, and keeps the one that counts: a thread where there are few classes, and for some
 * labels where these are neighbours; of short rows a thread has one in shared memory. Loss and weight are
 * added up in f64: a block's threads first, then the blocks by a second kernel, which is left out for so few
 * labels that one block has them: then that block makes the gradient as well, if it is asked for with the
 * loss. */
#include "cuda/kernels.h"
#include "cuda/kernels/softmax.h"

extern "C" {
#include "kernels/nll_loss.h"
}

#define THREADS TERN__LINE_THREADS
#define BLOCKS  4096 /* at most, whose sums are added up                */
#define AHEAD   4    /* labels of which a thread asks for a log probability */

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__row_tile rows;
    tern__lined x, logp, out; /* x: what logp is to be made of; out: the gradient */
    const void *label, *weight, *dloss;
    int label_dtype, dloss_dtype;
    const double *weights; /* their sum, which a mean is divided by */
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

/* Where its type is known. */
template <class S> static __device__ __forceinline__ typename S::R one_weight(const problem &p, int64_t c)
{
    return p.weight ? S::single(p.weight, c) : 1;
}

static __device__ __forceinline__ int64_t line_start(const problem &p, const tern__lined &l, int64_t line)
{
    int64_t o = tern__quotient(line, p.lines.inner);
    return o * l.outer + (line - o * p.lines.inner) * l.inner;
}

static __device__ __forceinline__ int64_t label_at(const problem &p, int64_t line)
{
    int64_t label[1];
    tern__labels_get(p.label, p.label_dtype, line, label);
    return label[0];
}

/* The number of its class, or -1: it is ignored. */
static __device__ __forceinline__ int64_t class_of(const problem &p, int64_t line, int64_t label)
{
    return label != p.ignored && tern__is_class(p.judge, line, label) ? label : -1;
}

/* ---- gradients ---- */

/* What is sent to one label's loss, divided as the loss was. */
static __device__ __forceinline__ double sent(const problem &p, int64_t line)
{
    double d = tern__element<double>(p.dloss, p.dloss_dtype, p.each ? line * p.dloss_step : 0);
    return p.mean ? tern__nll_mean(d, *p.weights) : d;
}

template <int G, class R>
static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) nll_gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t label = class_of(p, line, label_at(p, line)), at = line_start(p, p.out, line);
        double d = label < 0 ? 0 : -sent(p, line) * weight_of(p, label);
        for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G)
            tern__lined_put<R>(p.out, at + c * p.out.step, c == label ? (R)d : R(0), p.add_out);
    }
}

template <int G> static __device__ __forceinline__ double all_weights(const problem &p)
{
    double sum = 0;
    if (!p.weight) return (double)p.lines.size;
    for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G) sum += weight_of(p, c);
    return tern__group_sum<G>(sum);
}

/* What a label adds to its line: with q (kernels/reference/nll_loss.c) of every class `each` times its weight
 * and of its own class `one` more, and `all` of them. */
template <class R> struct pull {
    int64_t label;
    R all, each, one;
};

/* `base`: of all classes, without what the label adds. */
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
    return {c, (R)(sent * (base + one)), (R)each, (R)(sent * one)};
}

/* What smoothing adds for all classes together. */
template <int G> static __device__ __forceinline__ double base_of(const problem &p)
{
    return p.smoothing != 0 ? p.smoothing / (double)p.lines.size * all_weights<G>(p) : 0;
}

/* Some lines' labels and first stretch, which are asked for before what is sent to them is known. */
template <class S> struct asked {
    int64_t label[S::LINES];
    S logp;

    template <int G> __device__ __forceinline__ void ask(const problem &p, int64_t line)
    {
        logp.template read<G>(p.logp, line_start(p, p.logp, line), S::template first<G>(), p.lines.size);
        tern__labels_get(p.label, p.label_dtype, line, label);
    }
};

/* `alike`: what is sent to each label, if to all the same. */
template <int G, class S>
static __device__ __forceinline__ void spread(const problem &p, int64_t line, asked<S> &of, double alike,
                                              double base)
{
    typedef typename S::R R;
    const int64_t size = p.lines.size, pace = S::template pace<G>(), first = S::template first<G>();
    int64_t from = line_start(p, p.logp, line), to = line_start(p, p.out, line);
    pull<R> pulls[S::LINES];
#pragma unroll
    for (int k = 0; k < S::LINES; k++)
        pulls[k] = pull_of<S>(p, line + k, of.label[k], from + k, p.each ? sent(p, line + k) : alike, base);
    for (int64_t i = first; i < size; i += pace) {
        if (i > first) of.logp.template read<G>(p.logp, from, i, size);
#pragma unroll
        for (int n = 0; n < S::PIECES; n++) {
            int64_t c = S::template at<G>(i, n, 0);
            R slope[S::LANES];
            if (c >= size) break;
#pragma unroll
            for (int l = 0; l < S::LANES; l++) {
                const pull<R> &its = pulls[S::line(l)];
                slope[l] = exp(of.logp.piece[n].get(l)) * its.all;
                if (c + S::further(l) == its.label) slope[l] -= its.one;
                if (its.label < 0) slope[l] = 0;
            }
#pragma unroll
            for (int l = 0; l < S::LANES && p.smoothing != 0; l++)
                slope[l] -= pulls[S::line(l)].each * one_weight<S>(p, c + S::further(l));
            S::put(p.out, to, c, slope, p.add_out);
        }
    }
}

template <int G, class S>
static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) cross_entropy_gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner, step = tern__group_step<G>() * S::LINES;
    double alike = p.each ? 0 : sent(p, 0), base = base_of<G>(p);
    for (int64_t line = tern__group_first<G>() * S::LINES; line < count; line += step) {
        asked<S> of;
        of.template ask<G>(p, line);
        spread<G, S>(p, line, of, alike, base);
    }
}

/* ---- gradients of rows ---- */

template <int DTYPE>
static __global__ void __launch_bounds__(TERN__ROW_THREADS, TERN__ROW_BLOCKS) nll_gradient_rows(problem p)
{
    typedef tern__number<DTYPE> R;
    tern__kernel_begin();
    const int lane = (int)threadIdx.x % TERN__WARP;
    R *tile = tern__rows_tile<R>(p.rows, 0), *own = tile + lane * p.rows.apart;
    for (int64_t first = tern__rows_first(); first < p.rows.count; first += tern__rows_step()) {
        int64_t line = first + lane, label = line < p.rows.count ? class_of(p, line, label_at(p, line)) : -1;
        R slope = label < 0 ? R(0) : (R)(-sent(p, line) * weight_of(p, label));
        for (int c = 0; c < p.rows.size; c++) own[c] = 0;
        if (label >= 0) own[label] = slope;
        tern__rows_write<DTYPE>(p.rows, p.out.data, first, tile, p.add_out);
    }
}

/* Of log probabilities, in their place. */
template <class S>
static __device__ __forceinline__ void spread_row(const problem &p, const pull<typename S::R> &its,
                                                  typename S::R *row)
{
    const int size = its.label < 0 ? 0 : p.rows.size;
#pragma unroll 4
    for (int c = 0; c < size; c++) row[c] = exp(row[c]) * its.all;
    for (int c = size; c < p.rows.size; c++) row[c] = 0;
    if (size > 0) row[its.label] -= its.one;
    for (int c = 0; c < size && p.smoothing != 0; c++) row[c] -= its.each * one_weight<S>(p, c);
}

template <int DTYPE>
static __global__ void __launch_bounds__(TERN__ROW_THREADS, TERN__ROW_BLOCKS)
    cross_entropy_gradient_rows(problem p)
{
    typedef tern__stretch<DTYPE, 1> S;
    tern__kernel_begin();
    const int lane = (int)threadIdx.x % TERN__WARP;
    const double alike = p.each ? 0 : sent(p, 0), base = base_of<1>(p);
    typename S::R *tile = tern__rows_tile<typename S::R>(p.rows, 0);
    for (int64_t first = tern__rows_first(); first < p.rows.count; first += tern__rows_step()) {
        const int64_t line = first + lane;
        tern__rows_read<DTYPE>(p.rows, p.logp.data, first, tile);
        if (line < p.rows.count)
            spread_row<S>(p,
                          pull_of<S>(p, line, label_at(p, line), line * p.rows.size,
                                     p.each ? sent(p, line) : alike, base),
                          tile + lane * p.rows.apart);
        tern__rows_write<DTYPE>(p.rows, p.out.data, first, tile, p.add_out);
    }
}

/* ---- forward ---- */

static __device__ __forceinline__ void put_loss(const problem &p, int64_t at, double value)
{
    if (p.add) value += tern__element<double>(p.loss, p.loss_dtype, at);
    tern__element_set<double>(p.loss, p.loss_dtype, at, value);
}

static __device__ __forceinline__ void put_sums(const problem &p, double loss, double weight)
{
    if (!p.each) put_loss(p, 0, p.mean ? tern__nll_mean(loss, weight) : loss);
    *p.sum = weight + (p.add_sum ? *p.sum : 0);
}

/* A label's loss: `weight` is its class's, `own` its log probability and `all` the sum of all by their
 * weights. */
static __device__ __forceinline__ double loss_of(const problem &p, double weight, double own, double all)
{
    double smooth = p.smoothing != 0 ? all * p.smoothing / (double)p.lines.size : 0;
    double loss = -(1 - p.smoothing) * weight * own - smooth;
    return p.gamma == 0 ? loss : loss * tern__focus(own, p.gamma);
}

static __device__ __forceinline__ void add_label(const problem &p, int64_t line, bool counts, double weight,
                                                 double own, double all, double (&sums)[2])
{
    double loss = counts ? loss_of(p, weight, own, all) : 0;
    if (p.each) put_loss(p, line, loss);
    sums[0] += loss;
    sums[1] += counts ? weight : 0;
}

static __device__ __forceinline__ void leave(const problem &p, double (&sums)[2])
{
    tern__block_sums(sums);
    if (threadIdx.x) return;
    if (p.pieces == 1) {
        put_sums(p, sums[0], sums[1]);
        return;
    }
    p.partial[blockIdx.x * 2] = sums[0];
    p.partial[blockIdx.x * 2 + 1] = sums[1];
}

/* What counts of a piece of log probabilities from class c on: the labels' own, and with smoothing all. */
template <class S>
static __device__ __forceinline__ void keep(const problem &p, const int64_t (&label)[S::LINES], int64_t c,
                                            const typename S::R (&logp)[S::LANES],
                                            typename S::R (&own)[S::LINES], typename S::R (&all)[S::LINES])
{
#pragma unroll
    for (int l = 0; l < S::LANES; l++)
        if (c + S::further(l) == label[S::line(l)]) own[S::line(l)] = logp[l];
    if (p.smoothing == 0) return;
#pragma unroll
    for (int l = 0; l < S::LANES; l++) all[S::line(l)] += one_weight<S>(p, c + S::further(l)) * logp[l];
}

/* Makes log probabilities in stretches S. */
template <int G, class S> static __device__ __forceinline__ void take(const problem &p, double (&sums)[2])
{
    typedef typename S::R R;
    int64_t count = p.lines.outer * p.lines.inner, step = tern__group_step<G>() * S::LINES;
    for (int64_t line = tern__group_first<G>() * S::LINES; line < count; line += step) {
        int64_t label[S::LINES];
        R own[S::LINES] = {}, all[S::LINES] = {};
        tern__labels_get(p.label, p.label_dtype, line, label);
        tern__softmax_lines<G, S>(
            p.x, line_start(p, p.x, line), p.logp, line_start(p, p.logp, line), p.lines.size, true, false,
            [&](int64_t c, const R(&logp)[S::LANES]) { keep<S>(p, label, c, logp, own, all); });
#pragma unroll
        for (int k = 0; k < S::LINES; k++) {
            double of = tern__group_sum<G>((double)own[k]), sum = 0;
            if (p.smoothing != 0) sum = tern__group_sum<G>((double)all[k]);
            if (threadIdx.x % G) continue;
            int64_t c = class_of(p, line + k, label[k]);
            double weight = c < 0 ? 0 : (double)one_weight<S>(p, c);
            add_label(p, line + k, c >= 0, weight, (double)S::rounded((R)of), sum, sums);
        }
    }
}

template <int G, class S> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) forward(problem p)
{
    tern__kernel_begin();
    double sums[2] = {0, 0};
    take<G, S>(p, sums);
    leave(p, sums);
}

/* The sum of a row's log probabilities by their weights. */
template <class S>
static __device__ __forceinline__ double all_of_row(const problem &p, const typename S::R *row)
{
    typename S::R all = 0;
    for (int c = 0; c < p.rows.size; c++) all += one_weight<S>(p, c) * row[c];
    return (double)all;
}

template <int DTYPE>
static __global__ void __launch_bounds__(TERN__ROW_THREADS, TERN__ROW_BLOCKS) forward_rows(problem p)
{
    typedef tern__stretch<DTYPE, 1> S;
    tern__kernel_begin();
    const int lane = (int)threadIdx.x % TERN__WARP;
    typename S::R *tile = tern__rows_tile<typename S::R>(p.rows, 0), *own = tile + lane * p.rows.apart;
    double sums[2] = {0, 0};
    for (int64_t first = tern__rows_first(); first < p.rows.count; first += tern__rows_step()) {
        const int64_t line = first + lane;
        tern__rows_read<DTYPE>(p.rows, p.x.data, first, tile);
        tern__log_softmax_row(own, p.rows.size);
        if (line < p.rows.count) {
            int64_t c = class_of(p, line, label_at(p, line));
            double weight = c < 0 ? 0 : (double)one_weight<S>(p, c), all = 0;
            if (p.smoothing != 0) all = all_of_row<S>(p, own);
            add_label(p, line, c >= 0, weight, c < 0 ? 0 : (double)S::rounded(own[c]), all, sums);
        }
        tern__rows_write<DTYPE>(p.rows, p.logp.data, first, tile, false);
    }
    leave(p, sums);
}

/* The one block that has all labels goes on with the gradient: a thread reads the log probabilities that it
 * has made, of its one label. */
template <class S> static __global__ void __launch_bounds__(THREADS, 1) forward_and_back(problem p)
{
    tern__kernel_begin();
    __shared__ double weights;
    const int64_t line = threadIdx.x;
    const bool is_there = line < p.lines.outer * p.lines.inner;
    double sums[2] = {0, 0};
    asked<S> of;
    take<1, S>(p, sums);
    if (is_there) of.template ask<1>(p, line);
    leave(p, sums);
    if (threadIdx.x == 0) weights = sums[1];
    __syncthreads();
    if (is_there) spread<1, S>(p, line, of, p.mean ? tern__nll_mean(1, weights) : 1, base_of<1>(p));
}

/* The sum of a line's log probabilities by their weights, for every thread of the group. */
template <int G> static __device__ __forceinline__ double all_of(const problem &p, int64_t at)
{
    double sum = 0;
    for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G)
        sum += weight_of(p, c) * tern__lined_get<double>(p.logp, at + c * p.logp.step);
    return tern__group_sum<G>(sum);
}

/* Log probabilities are there: of each label one is read, or with smoothing all. */
template <int G> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) look_up(problem p)
{
    tern__kernel_begin();
    double sums[2] = {0, 0};
    int64_t count = p.lines.outer * p.lines.inner, step = tern__group_step<G>();
    for (int64_t first = tern__group_first<G>(); first < count; first += AHEAD * step) {
        int64_t label[AHEAD], at[AHEAD];
        double own[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            label[n] = first + n * step < count ? label_at(p, first + n * step) : 0;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            int64_t c = label[n] >= 0 && label[n] < p.lines.size ? label[n] : 0;
            at[n] = line_start(p, p.logp, first + n * step);
            own[n] = first + n * step < count ? tern__lined_get<double>(p.logp, at[n] + c * p.logp.step) : 0;
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (first + n * step >= count) break;
            double all = p.smoothing != 0 ? all_of<G>(p, at[n]) : 0;
            if (threadIdx.x % G) continue;
            int64_t c = class_of(p, first + n * step, label[n]);
            add_label(p, first + n * step, c >= 0, c < 0 ? 0 : weight_of(p, c), own[n], all, sums);
        }
    }
    leave(p, sums);
}

static __global__ void __launch_bounds__(TERN__LINE_MOST) close(problem p)
{
    tern__kernel_begin();
    double sums[2] = {0, 0};
#pragma unroll 4
    for (int i = threadIdx.x; i < p.pieces; i += TERN__LINE_MOST) {
        sums[0] += p.partial[i * 2];
        sums[1] += p.partial[i * 2 + 1];
    }
    tern__block_sums(sums);
    if (threadIdx.x == 0) put_sums(p, sums[0], sums[1]);
}

/* ---- which ---- */

/* Of two operands of one dtype. */
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
    return is_plain(labels) && is_plain(weight) && (!weight || weight->dtype == logp->dtype) &&
           tern__lined_of(logp, logp->ndim > 1, &p->logp);
}

/* Blocks for the labels, of which one takes `each` at a time; their number is that of the partial sums. */
static int start_blocks(const tern__call *call, problem *p, int64_t each, void (*kernel)(problem),
                        int threads, size_t shared)
{
    int64_t labels = p->lines.outer * p->lines.inner;
    p->pieces = tern__sum_pieces(labels, each, BLOCKS);
    if (p->pieces > 1)
        p->partial = (double *)tern__cuda_scratch(call, (size_t)p->pieces * 2 * sizeof(double));
    if (p->pieces > 1 && !p->partial) return TERN_E_MEMORY;
    int status = tern__cuda_launch(call, kernel, p->pieces, threads, shared, *p);
    if (!status && p->pieces > 1) status = tern__cuda_launch(call, close, 1, TERN__LINE_MOST, 0, *p);
    tern__cuda_scratch_free(call, p->partial);
    return status;
}

static int start_forward(const tern__call *call, problem *p, int group, int64_t each, void (*kernel)(problem))
{
    return start_blocks(call, p, each, kernel, TERN__GROUP_BLOCK(group), 0);
}

static bool forward_of(const tern__call *call, const tern__view *logp, problem *p)
{
    if (!problem_of(call, logp, 1, p) || !is_plain(call->out[0])) return false;
    p->add = call->add[0];
    p->loss = call->out[0]->data;
    p->loss_dtype = call->out[0]->dtype;
    p->sum = (double *)call->out[1]->data;
    p->add_sum = call->add[1];
    return true;
}

int tern__cuda_nll_loss(const tern__call *call)
{
    problem p;
    if (!forward_of(call, call->in[0], &p)) return TERN_E_UNSUPPORTED;
    bool by_warp = p.smoothing != 0 && tern__group_size(&p.lines, &p.logp) > 1;
    int64_t each = AHEAD * (by_warp ? THREADS / TERN__WARP : THREADS);
    return by_warp ? start_forward(call, &p, TERN__WARP, each, look_up<TERN__WARP>)
                   : start_forward(call, &p, 1, each, look_up<1>);
}

/* A thread has all classes of its label in registers: half as many of these where they are few and single. */
template <int DTYPE, int N> static int start_both(const tern__call *call, problem *p)
{
    enum { MOST = TERN__NLL_CLASSES };
    typedef tern__stretch<DTYPE, N, 1, MOST / N> whole;
    typedef tern__stretch<DTYPE, N, 1, (N > 1 ? MOST / N : MOST / 2)> fewer;
    return p->lines.size <= MOST / 2 ? start_forward(call, p, 1, THREADS, forward_and_back<fewer>)
                                     : start_forward(call, p, 1, THREADS, forward_and_back<whole>);
}

template <int DTYPE, int N> static int start_cross_entropy(const tern__call *call, problem *p)
{
    typedef tern__stretch<DTYPE, N> S;
    if (p->out.data) return start_both<DTYPE, N>(call, p);
    switch (p->lines.size <= TERN__NLL_CLASSES ? 1 : tern__group_size(&p->lines, &p->x)) {
    case 1: return start_forward(call, p, 1, THREADS, forward<1, S>);
    case TERN__WARP: return start_forward(call, p, TERN__WARP, THREADS / TERN__WARP, forward<TERN__WARP, S>);
    case THREADS: return start_forward(call, p, THREADS, 1, forward<THREADS, S>);
    default: return start_forward(call, p, TERN__LINE_MOST, 1, forward<TERN__LINE_MOST, S>);
    }
}

template <int DTYPE, int N> static int start_side_by_side(const tern__call *call, problem *p)
{
    typedef tern__stretch<DTYPE, N, N> S;
    typedef tern__whole_lines<DTYPE> W;
    if (p->lines.size > S::PIECES && p->lines.size <= W::PIECES)
        return start_forward(call, p, 1, THREADS * W::LINES, forward<1, W>);
    return start_forward(call, p, 1, THREADS * N, forward<1, S>);
}

template <int DTYPE, int> static int start_forward_rows(const tern__call *call, problem *p)
{
    p->rows = tern__rows_of(&p->lines);
    return start_blocks(call, p, TERN__ROW_THREADS, forward_rows<DTYPE>, TERN__ROW_THREADS,
                        tern__rows_bytes(p->rows, 1, DTYPE));
}

static bool back_of(const tern__call *call, const tern__view *x, const tern__view *dx, problem *p)
{
    static_assert(TERN__NLL_LABELS <= THREADS && TERN__NLL_LABELS < TERN__LINE_MANY,
                  "a block has all labels, and a thread one");
    p->add_out = call->add[3];
    return dx->dtype == x->dtype && tern__nll_is_short(x) && !p->each &&
           tern__lined_of(dx, x->ndim > 1, &p->out);
}

int tern__cuda_cross_entropy(const tern__call *call)
{
    problem p;
    const tern__view *x = call->in[0], *logp = call->out[2], *dx = call->out[3];
    if (x->dtype != logp->dtype || !forward_of(call, logp, &p) || !tern__lined_of(x, x->ndim > 1, &p.x) ||
        (dx && !back_of(call, x, dx, &p)))
        return TERN_E_UNSUPPORTED;
    if (tern__lined_side_by_side(&p.x, &p.lines) && tern__lined_side_by_side(&p.logp, &p.lines))
        TERN__BUNCHED(x->dtype, true, start_side_by_side, call, &p);
    if (are_rows(p, p.x, p.logp) && !dx) TERN__BUNCHED(x->dtype, false, start_forward_rows, call, &p);
    bool bunched = tern__lined_bunched(&p.x, &p.lines) && tern__lined_bunched(&p.logp, &p.lines) &&
                   (!dx || tern__lined_bunched(&p.out, &p.lines));
    TERN__BUNCHED(x->dtype, bunched, start_cross_entropy, call, &p);
}

/* in: the first input but for log p that both gradients have, the label. */
static bool gradient_of(const tern__call *call, const tern__view *logp, int label, problem *p)
{
    const tern__view *dloss = call->in[0];
    if (!problem_of(call, logp, label, p) || !tern__lined_of(call->out[0], logp->ndim > 1, &p->out))
        return false;
    p->add_out = call->add[0];
    p->dloss = dloss->data;
    p->dloss_dtype = dloss->dtype;
    p->weights = call->in[label + 2] ? (const double *)call->in[label + 2]->data : nullptr;
    int64_t step = 0;
    bool is_line = tern__lined_merge(dloss, 0, dloss->ndim, &step);
    p->dloss_step = step;
    return is_line || !p->each;
}

static int start_rows(const tern__call *call, problem p, void (*kernel)(problem))
{
    p.rows = tern__rows_of(&p.lines);
    return tern__cuda_launch(call, kernel, tern__cuda_grid(call, p.rows.count, TERN__ROW_THREADS, 1),
                             TERN__ROW_THREADS, tern__rows_bytes(p.rows, 1, p.out.dtype), p);
}

template <int DTYPE, int> static int start_nll_gradient_rows(const tern__call *call, const problem &p)
{
    return start_rows(call, p, nll_gradient_rows<DTYPE>);
}

template <int DTYPE, int> static int start_gradient_rows(const tern__call *call, const problem &p)
{
    return start_rows(call, p, cross_entropy_gradient_rows<DTYPE>);
}

int tern__cuda_nll_loss_grad(const tern__call *call)
{
    problem p;
    if (!gradient_of(call, call->out[0], 1, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->out[0]) == 0) return TERN_OK;
    if (are_rows(p, p.out, p.out)) TERN__BUNCHED(p.out.dtype, false, start_nll_gradient_rows, call, p);
    int group = tern__group_size(&p.lines, &p.out);
    return call->out[0]->dtype == TERN_F64 ? TERN__GROUPS_OF(call, p.lines, group, nll_gradient, double, p)
                                           : TERN__GROUPS_OF(call, p.lines, group, nll_gradient, float, p);
}

template <int DTYPE, int N> static int start_gradient(const tern__call *call, const problem &p)
{
    typedef tern__stretch<DTYPE, N> S;
    int group = tern__group_size(&p.lines, &p.out);
    return TERN__GROUPS_OF(call, p.lines, group, cross_entropy_gradient, S, p);
}

template <int DTYPE, int N> static int start_gradients(const tern__call *call, const problem &p)
{
    typedef tern__stretch<DTYPE, N, N> S;
    return TERN__SIDES_OF(call, p.lines, cross_entropy_gradient, S, p);
}

int tern__cuda_cross_entropy_grad(const tern__call *call)
{
    problem p;
    const tern__view *logp = call->in[1], *dx = call->out[0];
    if (dx->dtype != logp->dtype || !gradient_of(call, logp, 2, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(dx) == 0) return TERN_OK;
    if (tern__lined_side_by_side(&p.out, &p.lines) && tern__lined_side_by_side(&p.logp, &p.lines))
        TERN__BUNCHED(dx->dtype, true, start_gradients, call, p);
    if (are_rows(p, p.out, p.logp)) TERN__BUNCHED(dx->dtype, false, start_gradient_rows, call, p);
    bool bunched = tern__lined_bunched(&p.out, &p.lines) && tern__lined_bunched(&p.logp, &p.lines);
    TERN__BUNCHED(dx->dtype, bunched, start_gradient, call, p);
}
