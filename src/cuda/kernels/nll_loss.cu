/* nll_loss.cu - the losses of labels under log probabilities (kernels/nll_loss.h).
 *
 * Given log probabilities, a thread takes some labels and reads one log probability of each. With smoothing
 * all classes count: a thread reads them, or a warp where they are neighbours in memory.
 *
 * Cross entropy makes the log probabilities first, in memory of their own. A thread takes a label where
 * there are few classes, and several labels where these are neighbours in memory; short rows go through
 * shared memory, one to a thread.
 *
 * Losses and weights are summed in f64: first over a block's threads, then over the blocks by a second
 * kernel. One block suffices for few labels. Then there is no second kernel, and that block makes the
 * gradient as well if it is wanted with the loss. */
#include "cuda/kernels/nll_loss_inner.h"

#define BLOCKS 4096 /* most blocks with partial sums */
#define AHEAD  4    /* labels for which a thread reads a log probability at a time */

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

/* A label's loss: `weight` is its class's weight, `own` its log probability, `all` the weighted sum of all
 * log probabilities. */
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
    static_assert(2 * TERN__WARP * sizeof(sums[0]) <= TERN__ROW_SUMS, "the sums fit beside rows");
    tern__block_sums(sums);
    if (threadIdx.x) return;
    if (p.pieces == 1) {
        put_sums(p, sums[0], sums[1]);
        return;
    }
    p.partial[blockIdx.x * 2] = sums[0];
    p.partial[blockIdx.x * 2 + 1] = sums[1];
}

/* Keeps what the loss needs of a piece of log probabilities from class c on: with smoothing the weighted sum,
 * and of adjacent lines those of the labels. */
template <class S>
static __device__ __forceinline__ void keep(const problem &p, const int64_t (&label)[S::LINES], int c,
                                            const typename S::R (&logp)[S::LANES],
                                            typename S::R (&own)[S::LINES], typename S::R (&all)[S::LINES])
{
#pragma unroll
    for (int l = 0; l < S::LANES && S::LINES > 1; l++)
        if (c == label[l]) own[l] = logp[l];
    if (p.smoothing == 0) return;
#pragma unroll
    for (int l = 0; l < S::LANES; l++)
        all[S::line(l)] += S::is_in(c, l, (int)p.lines.size) ? lane_weight<S>(p, c, l) * logp[l] : 0;
}

/* Computes log probabilities in stretches S and sums the losses. */
template <int G, class S> static __device__ __forceinline__ void take(const problem &p, double (&sums)[2])
{
    typedef typename S::R R;
    int64_t count = p.lines.outer * p.lines.inner, step = tern__group_step<G>() * S::LINES;
    for (int64_t line = tern__group_first<G>() * S::LINES; line < count; line += step) {
        int64_t label[S::LINES];
        const int64_t from = line_start(p, p.x, line), to = line_start(p, p.logp, line);
        R base[S::LINES], share[S::LINES], own[S::LINES] = {}, all[S::LINES] = {};
        tern__labels_get(p.label, p.label_dtype, line, label);
        tern__softmax_lines<G, S>(
            p.x, from, p.logp, to, (int)p.lines.size, true, false, base, share,
            [&](int c, const R(&logp)[S::LANES]) { keep<S>(p, label, c, logp, own, all); });
#pragma unroll
        for (int k = 0; k < S::LINES; k++) {
            double sum = p.smoothing != 0 ? tern__group_sum<G>((double)all[k]) : 0;
            if (threadIdx.x % G) continue;
            int64_t c = class_of(p, line + k, label[k]);
            double weight = c < 0 ? 0 : (double)one_weight<S>(p, c);
            if (S::LINES == 1 && c >= 0)
                own[k] = S::single(p.x.data, from + c * p.x.step) - base[k] - share[k];
            add_label(p, line + k, c >= 0, weight, (double)S::rounded(own[k]), sum, sums);
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

/* The weighted sum of a row's log probabilities. */
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

/* One block has all labels and continues with the gradient: each thread reads back the log probabilities
 * of its one label. */
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

/* The weighted sum of a line's log probabilities, for every thread of the group. */
template <int G> static __device__ __forceinline__ double all_of(const problem &p, int64_t at)
{
    double sum = 0;
    for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G)
        sum += weight_of(p, c) * tern__lined_get<double>(p.logp, at + c * p.logp.step);
    return tern__group_sum<G>(sum);
}

/* Log probabilities are given: reads one for each label, or with smoothing all. */
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

/* ---- launching ---- */

/* Launches blocks that take `each` labels at a time; there are as many partial sums as blocks. */
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

/* A thread holds all classes of its label in registers: half as many if they are few and read one by one. */
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
    typedef tern__stretch<DTYPE, N, 1, (N > 1 ? (int)S::PIECES : TERN__LINE_WHOLE)> alone;
    if (p->out.data) return start_both<DTYPE, N>(call, p);
    switch (p->lines.size <= TERN__NLL_CLASSES ? 1 : tern__group_size(&p->lines, &p->x)) {
    case 1: return start_forward(call, p, 1, THREADS, forward<1, alone>);
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
    bool bunched =
        tern__lined_alike(&p.x, &p.logp, &p.lines) && (!dx || tern__lined_alike(&p.out, &p.logp, &p.lines));
    TERN__BUNCHED(x->dtype, bunched, start_cross_entropy, call, &p);
}
