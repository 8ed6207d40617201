/* dice_loss.cu - Dice and cross entropy with it (kernels/dice_loss.h).
 *
 * Forward: with a map of classes a first kernel leaves each position's log sum exp. Then every channel of a
 * sample is cut into pieces; a block makes the five sums of one, blocks of neighbouring channels run side by
 * side and find the position's norm and label in the cache. A third kernel joins the pieces, and a block
 * makes the loss of them. Backward: one block makes each channel's slopes; with a map of classes a thread has
 * a position with all its channels, else every element is for itself. */
#include "cuda/elements.h"
#include "cuda/kernels.h"
#include "cuda/sums.h"

extern "C" {
#include "kernels/dice_loss.h"
}

#define THREADS 256
#define LEAST   2048 /* elements of a piece */

namespace
{
typedef struct problem {
    tern__dice_attr attr;
    tern__channels c;
    const void *x, *target, *dloss;
    void *norm, *out; /* out: the loss, or dx */
    int x_dtype, target_dtype, dloss_dtype, out_dtype, pieces;
    bool checks, add, fours;
    tern__judge judge;
    double *partial; /* [channel of a sample][piece][TERN__OVERLAP] */
    tern__overlap *sums;
    tern__dice_slope *slopes;
} problem;

/* One element: its probability, its target, and of its cross entropy what counts here. */
template <class R> struct element {
    bool counts;
    R p, t, entropy;
};
} // namespace

/* An element of the target by its number; false: it is ignored. */
static __device__ __forceinline__ bool label_at(const problem &p, int64_t i, int64_t *label)
{
    *label = tern__element<int64_t>(p.target, p.target_dtype, i);
    return *label != p.attr.ignored && tern__is_class(p.judge, i, *label);
}

template <class R>
static __device__ __forceinline__ element<R> mask_element(const problem &p, R x, R t, int64_t i)
{
    int64_t label;
    element<R> e = {p.checks ? label_at(p, i, &label) : (double)t != (double)p.attr.ignored, x, t, 0};
    if (p.attr.probabilities) return e;
    R tail = exp(-fabs(x));
    e.p = (x < 0 ? tail : R(1)) / (1 + tail);
    e.entropy = (x > 0 ? x : R(0)) - x * t + log1p(tail);
    return e;
}

template <class R>
static __device__ __forceinline__ element<R> class_element(const problem &p, R x, R norm, bool counts,
                                                           bool is_label)
{
    element<R> e = {counts, x, (R)is_label, 0};
    if (!p.attr.probabilities) e.p = exp(x - norm);
    if (is_label) e.entropy = norm - x;
    return e;
}

/* ---- forward ---- */

template <class R> static __device__ __forceinline__ R log_sum(const problem &p, int64_t at)
{
    R top = (R)-INFINITY, sum = 0;
    if (p.attr.probabilities) return 0;
    for (int64_t k = 0; k < p.c.channels; k++) {
        R x = tern__element<R>(p.x, p.x_dtype, at + k * p.c.inner);
        top = x > top ? x : top;
    }
    for (int64_t k = 0; k < p.c.channels; k++)
        sum += exp(tern__element<R>(p.x, p.x_dtype, at + k * p.c.inner) - top);
    return top + log(sum);
}

template <class R> static __global__ void find_norms(problem p)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.c.samples * p.c.inner; i += step) {
        int64_t sample = i / p.c.inner;
        ((R *)p.norm)[i] = log_sum<R>(p, sample * p.c.channels * p.c.inner + i % p.c.inner);
    }
}

template <class R, class S>
static __device__ __forceinline__ void add_element(const problem &p, const element<R> &e, S sums[])
{
    if (!e.counts) return;
    sums[0] += (S)(e.p * e.t);
    sums[1] += (S)(p.attr.squared ? e.p * e.p : e.p);
    sums[2] += (S)(p.attr.squared ? e.t * e.t : e.t);
    sums[3] += (S)e.entropy;
    sums[4] += p.attr.classes ? (S)e.t : S(1);
}

/* Of a mask and its target: four neighbours, or the one where no four can be read at once. */
template <class R, int N>
static __device__ __forceinline__ void get(const problem &p, int64_t at, tern__four<R> *x, tern__four<R> *t)
{
    if (N == 4) {
        tern__read logits = tern__four_read(p.x, p.x_dtype, at);
        tern__read labels = tern__four_read(p.target, p.target_dtype, at);
        *x = tern__four_of<R>(logits, p.x, p.x_dtype, at);
        *t = tern__four_of<R>(labels, p.target, p.target_dtype, at);
        return;
    }
    x->v[0] = tern__element<R>(p.x, p.x_dtype, at);
    t->v[0] = tern__element<R>(p.target, p.target_dtype, at);
}

/* Four are summed as they are, and then in double. */
template <class R, int N> static __global__ void add_mask_pieces(problem p)
{
    tern__kernel_begin();
    int64_t channels = p.c.samples * p.c.channels, each = (p.c.inner / N + p.pieces - 1) / p.pieces * N;
    for (int64_t n = blockIdx.x; n < channels * p.pieces; n += gridDim.x) {
        int64_t channel = n / p.pieces, piece = n - channel * p.pieces;
        int64_t first = channel * p.c.inner, last = TERN__MIN((piece + 1) * each, p.c.inner);
        double sums[TERN__OVERLAP] = {0};
        for (int64_t i = piece * each + threadIdx.x * N; i < last; i += THREADS * N) {
            tern__four<R> x = {}, t = {};
            get<R, N>(p, first + i, &x, &t);
            R few[TERN__OVERLAP] = {0};
#pragma unroll
            for (int e = 0; e < N; e++)
                add_element(p, mask_element<R>(p, x.v[e], t.v[e], first + i + e), few);
            for (int k = 0; k < TERN__OVERLAP; k++) sums[k] += (double)few[k];
        }
        tern__block_sums(sums);
        for (int k = 0; k < TERN__OVERLAP && threadIdx.x == 0; k++)
            p.partial[n * TERN__OVERLAP + k] = sums[k];
    }
}

template <class R> static __global__ void add_class_pieces(problem p)
{
    tern__kernel_begin();
    int64_t channels = p.c.samples * p.c.channels, each = (p.c.inner + p.pieces - 1) / p.pieces;
    for (int64_t n = blockIdx.x; n < channels * p.pieces; n += gridDim.x) {
        int64_t k = n % p.c.channels, piece = n / p.c.channels % p.pieces,
                sample = n / p.c.channels / p.pieces;
        int64_t channel = sample * p.c.channels + k, last = TERN__MIN((piece + 1) * each, p.c.inner);
        double sums[TERN__OVERLAP] = {0};
        for (int64_t i = piece * each + threadIdx.x; i < last; i += THREADS) {
            R x = tern__element<R>(p.x, p.x_dtype, channel * p.c.inner + i);
            int64_t label, position = sample * p.c.inner + i;
            bool counts = label_at(p, position, &label);
            R norm = p.attr.probabilities ? R(0) : ((const R *)p.norm)[position];
            add_element(p, class_element<R>(p, x, norm, counts, label == k), sums);
        }
        tern__block_sums(sums);
        for (int i = 0; i < TERN__OVERLAP && threadIdx.x == 0; i++)
            p.partial[(channel * p.pieces + piece) * TERN__OVERLAP + i] = sums[i];
    }
}

static __global__ void join_pieces(problem p)
{
    tern__kernel_begin();
    int64_t values = p.c.samples * p.c.channels * TERN__OVERLAP,
            step = (int64_t)gridDim.x * (THREADS / TERN__WARP);
    int64_t n = (int64_t)blockIdx.x * (THREADS / TERN__WARP) + threadIdx.x / TERN__WARP;
    for (; n < values; n += step) {
        const double *first = p.partial + n / TERN__OVERLAP * p.pieces * TERN__OVERLAP + n % TERN__OVERLAP;
        double sum = tern__pieces_join<tern__add>(first, p.pieces, TERN__OVERLAP, 0.0);
        if (threadIdx.x % TERN__WARP == 0) ((double *)p.sums)[n] = sum;
    }
}

static __device__ __forceinline__ void put(const problem &p, int64_t at, double value)
{
    if (p.add) value += tern__element<double>(p.out, p.out_dtype, at);
    tern__element_set<double>(p.out, p.out_dtype, at, value);
}

/* By one block. */
static __global__ void close(problem p)
{
    tern__kernel_begin();
    int64_t count = tern__dice_regions(&p.attr, &p.c);
    double sums[3] = {0, 0, 0}; /* Dice of all regions, cross entropy, elements */
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        tern__overlap o = tern__dice_region(&p.attr, &p.c, p.sums, i / p.c.channels, i % p.c.channels);
        double dice = tern__dice_of(&p.attr, &o);
        if (p.attr.each) put(p, i, p.attr.dice * dice);
        sums[0] += dice;
    }
    for (int64_t i = threadIdx.x; i < p.c.samples * p.c.channels; i += THREADS) {
        sums[1] += p.sums[i].entropy;
        sums[2] += p.sums[i].count;
    }
    tern__block_sums(sums);
    if (threadIdx.x || p.attr.each) return;
    double loss = p.attr.dice * (p.attr.mean ? sums[0] / (double)count : sums[0]);
    if (p.attr.entropy != 0) loss += p.attr.entropy * (p.attr.mean ? sums[1] / sums[2] : sums[1]);
    put(p, 0, loss);
}

/* ---- gradient ---- */

/* By one block. */
static __global__ void find_slopes(problem p)
{
    tern__kernel_begin();
    int64_t channels = p.c.samples * p.c.channels;
    double count = 0;
    for (int64_t i = threadIdx.x; i < channels; i += THREADS) count += p.sums[i].count;
    count = tern__block_sum(count);
    if (!p.attr.mean) count = 1;
    double entropy = p.attr.entropy != 0 && count > 0
                         ? tern__element<double>(p.dloss, p.dloss_dtype, 0) * p.attr.entropy / count
                         : 0;
    for (int64_t i = threadIdx.x; i < channels; i += THREADS) {
        int64_t channel = i % p.c.channels, region = p.attr.over_batch ? channel : i;
        tern__overlap o = tern__dice_region(&p.attr, &p.c, p.sums, i / p.c.channels, channel);
        double sent = tern__element<double>(p.dloss, p.dloss_dtype, p.attr.each ? region : 0);
        p.slopes[i] = tern__dice_slope_by(&p.attr, &p.c, &o, sent, entropy);
    }
}

/* By the probability. */
template <class R>
static __device__ __forceinline__ R rise(const problem &p, const tern__dice_slope &slope, const element<R> &e)
{
    return (R)slope.of_target * e.t + (R)slope.of_x * (p.attr.squared ? 2 * e.p : R(1));
}

template <class R> static __device__ __forceinline__ void put_slope(const problem &p, int64_t at, R value)
{
    if (p.add) value += tern__element<R>(p.out, p.out_dtype, at);
    tern__element_set<R>(p.out, p.out_dtype, at, value);
}

template <class R>
static __device__ __forceinline__ R mask_slope(const problem &p, const tern__dice_slope &slope,
                                               const element<R> &e)
{
    R d = rise(p, slope, e);
    if (!p.attr.probabilities) d = d * e.p * (1 - e.p) + (R)slope.entropy * (e.p - e.t);
    return e.counts ? d : R(0);
}

template <class R, int N> static __global__ void mask_gradient(problem p)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS * N, count = p.c.samples * p.c.channels * p.c.inner;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < count; i += step) {
        tern__dice_slope slope = p.slopes[tern__quotient(i, p.c.inner)];
        tern__four<R> x = {}, t = {}, d = {};
        get<R, N>(p, i, &x, &t);
#pragma unroll
        for (int e = 0; e < N; e++) d.v[e] = mask_slope(p, slope, mask_element<R>(p, x.v[e], t.v[e], i + e));
        if (N == 4 && !p.add)
            tern__four_set<R>(p.out, p.out_dtype, i, d);
        else
            for (int e = 0; e < N; e++) put_slope<R>(p, i + e, d.v[e]);
    }
}

template <class R> static __global__ void class_gradient(problem p)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.c.samples * p.c.inner; i += step) {
        int64_t sample = i / p.c.inner, at = sample * p.c.channels * p.c.inner + i % p.c.inner, label;
        const tern__dice_slope *slopes = p.slopes + sample * p.c.channels;
        bool counts = label_at(p, i, &label);
        R norm = log_sum<R>(p, at), mean = 0;
        for (int64_t k = 0; k < p.c.channels && !p.attr.probabilities; k++) {
            R x = tern__element<R>(p.x, p.x_dtype, at + k * p.c.inner);
            element<R> e = class_element<R>(p, x, norm, counts, label == k);
            mean += e.p * rise(p, slopes[k], e);
        }
        for (int64_t k = 0; k < p.c.channels; k++) {
            R x = tern__element<R>(p.x, p.x_dtype, at + k * p.c.inner);
            element<R> e = class_element<R>(p, x, norm, counts, label == k);
            R d = rise(p, slopes[k], e);
            if (!p.attr.probabilities) d = e.p * (d - mean) + (R)slopes[k].entropy * (e.p - e.t);
            put_slope<R>(p, at + k * p.c.inner, counts ? d : R(0));
        }
    }
}

/* ---- which ---- */

/* Rows of four begin at multiples of four. */
static bool takes_fours(const problem *p, const tern__view *out)
{
    return p->c.inner % 4 == 0 && tern__fours_fit(p->x, p->x_dtype) &&
           tern__fours_fit(p->target, p->target_dtype) && tern__fours_fit(out->data, (int)out->dtype);
}

static bool problem_of(const tern__call *call, const tern__view *x, const tern__view *target, problem *p)
{
    *p = {};
    p->attr = *(const tern__dice_attr *)call->attr;
    p->c = {x->shape[0], x->shape[1], 1};
    for (int d = 2; d < x->ndim; d++) p->c.inner *= x->shape[d];
    p->x = x->data;
    p->x_dtype = x->dtype;
    p->target = target->data;
    p->target_dtype = target->dtype;
    p->out = call->out[0]->data;
    p->out_dtype = call->out[0]->dtype;
    p->add = call->add[0];
    p->checks = !tern__dtype_is_float(target->dtype);
    p->judge.fault = tern__cuda_of(call->device)->fault;
    p->judge.site.labels = tern__dice_labels(&p->attr, &p->c);
    p->fours = takes_fours(p, call->out[0]);
    return tern__view_is_contiguous(x) && tern__view_is_contiguous(target) &&
           tern__view_is_contiguous(call->out[0]);
}

template <class R> static int start_sums(const tern__call *call, const problem *p)
{
    int64_t positions = p->c.samples * p->c.inner, pieces = p->c.samples * p->c.channels * p->pieces;
    int status = TERN_OK;
    if (p->norm && positions)
        status = tern__cuda_launch(call, find_norms<R>, tern__cuda_grid(call, positions, THREADS, 1), THREADS,
                                   0, *p);
    void (*add)(problem) = p->attr.classes ? add_class_pieces<R>
                           : p->fours      ? add_mask_pieces<R, 4>
                                           : add_mask_pieces<R, 1>;
    if (!status && pieces)
        status = tern__cuda_launch(call, add, tern__cuda_grid(call, pieces, 1, 1), THREADS, 0, *p);
    return status;
}

static int start_forward(const tern__call *call, const problem *p)
{
    int64_t values = p->c.samples * p->c.channels * TERN__OVERLAP;
    bool is_wide = p->x_dtype == TERN_F64;
    int status = is_wide ? start_sums<double>(call, p) : start_sums<float>(call, p);
    dim3 grid = tern__cuda_grid(call, values, THREADS / TERN__WARP, 1);
    if (!status && values) status = tern__cuda_launch(call, join_pieces, grid, THREADS, 0, *p);
    return status ? status : tern__cuda_launch(call, close, 1, THREADS, 0, *p);
}

int tern__cuda_dice_loss(const tern__call *call)
{
    problem p;
    if (!problem_of(call, call->in[0], call->in[1], &p)) return TERN_E_UNSUPPORTED;
    bool needs_norm = p.attr.classes && !p.attr.probabilities;
    int64_t channels = p.c.samples * p.c.channels, size = p.x_dtype == TERN_F64 ? 8 : 4;
    p.pieces = tern__sum_pieces(p.c.inner, LEAST);
    p.sums = (tern__overlap *)call->out[1]->data;
    p.partial = (double *)tern__cuda_scratch(call, (size_t)(channels * p.pieces) * sizeof(tern__overlap));
    if (needs_norm) p.norm = tern__cuda_scratch(call, (size_t)(p.c.samples * p.c.inner * size));
    bool has_room = p.partial && (p.norm || !needs_norm);
    int status = has_room ? start_forward(call, &p) : TERN_E_MEMORY;
    tern__cuda_scratch_free(call, p.norm);
    tern__cuda_scratch_free(call, p.partial);
    return status;
}

template <class R> static int start_gradient(const tern__call *call, const problem *p)
{
    int64_t elements = p->c.samples * p->c.inner * (p->attr.classes ? 1 : p->c.channels);
    int each = !p->attr.classes && p->fours ? 4 : 1;
    void (*gradient)(problem) = p->attr.classes ? class_gradient<R>
                                : p->fours      ? mask_gradient<R, 4>
                                                : mask_gradient<R, 1>;
    int status = tern__cuda_launch(call, find_slopes, 1, THREADS, 0, *p);
    dim3 grid = tern__cuda_grid(call, elements, THREADS, each);
    return status ? status : tern__cuda_launch(call, gradient, grid, THREADS, 0, *p);
}

int tern__cuda_dice_loss_grad(const tern__call *call)
{
    problem p;
    const tern__view *dloss = call->in[0];
    if (!problem_of(call, call->in[1], call->in[2], &p)) return TERN_E_UNSUPPORTED;
    if (p.attr.each && !tern__view_is_contiguous(dloss)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->in[1]) == 0) return TERN_OK;
    p.dloss = dloss->data;
    p.dloss_dtype = dloss->dtype;
    p.sums = (tern__overlap *)call->in[3]->data;
    p.slopes = (tern__dice_slope *)tern__cuda_scratch(call, (size_t)(p.c.samples * p.c.channels) *
                                                                sizeof(tern__dice_slope));
    if (!p.slopes) return TERN_E_MEMORY;
    int status = p.x_dtype == TERN_F64 ? start_gradient<double>(call, &p) : start_gradient<float>(call, &p);
    tern__cuda_scratch_free(call, p.slopes);
    return status;
}
