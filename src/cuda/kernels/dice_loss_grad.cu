/* dice_loss_grad.cu - the gradient of Dice and of cross entropy with it. One block computes each channel's
 * slopes. Then, for a map of classes, a thread or a team takes positions with all their channels;
 * otherwise a thread takes some elements of one channel. */
#include "cuda/kernels/dice_loss_mask.h"

/* Run by one block. */
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

/* The derivative with respect to the probability. */
template <class R>
static __device__ __forceinline__ R rise(const problem &p, const tern__dice_slope &slope, const element<R> &e)
{
    return (R)slope.of_target * e.t + (R)slope.of_x * (p.attr.squared ? 2 * e.p : R(1));
}

/* The slope of a channel's element with probability P and target T is of_target T + of_x + of_p P. */
template <class M> struct mask_slopes {
    typedef typename M::R R;
    const problem &p;
    R of_target, of_x, of_p, entropy;

    __device__ __forceinline__ mask_slopes(const problem &of, const tern__dice_slope &by) : p(of)
    {
        of_target = (R)by.of_target;
        of_x = of.attr.squared ? R(0) : (R)by.of_x;
        of_p = of.attr.squared ? 2 * (R)by.of_x : R(0);
        entropy = (R)by.entropy;
    }
    template <int N> __device__ __forceinline__ void shares(const R (&x)[N], const R (&t)[N], R (&d)[N]) const
    {
#pragma unroll
        for (int l = 0; l < N; l++) d[l] = of_target * t[l] + (of_p * x[l] + of_x);
    }
    template <int N> __device__ __forceinline__ void logits(const R (&x)[N], const R (&t)[N], R (&d)[N]) const
    {
#pragma unroll
        for (int l = 0; l < N; l++) {
            const sigmoid<R> of = sigmoid_of(x[l]);
            const R share = probability(x[l], of), rise = of_target * t[l] + (of_p * share + of_x);
            d[l] = rise * (of.most * of.least) + entropy * (share - t[l]);
        }
    }
    /* Stores as many at a time as fit into 16 bytes, or all. */
    template <int N> __device__ __forceinline__ void put(int64_t at, const R (&d)[N]) const
    {
        enum { EACH = N * sizeof(R) < 16 ? N : 16 / sizeof(R) };
#pragma unroll
        for (int l = 0; l < N; l += EACH) {
            R some[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++) some[k] = d[l + k];
            tern__bunch_put<M::X_DTYPE>(p.out, at + l, some, p.add);
        }
    }
    template <int N> __device__ __forceinline__ void take(int64_t at, R (&x)[N], R (&t)[N])
    {
        R d[N];
        bool counts[N];
        leave_out<M>(p, at, x, t, counts);
        p.attr.probabilities ? shares(x, t, d) : logits(x, t, d);
#pragma unroll
        for (int l = 0; l < N; l++) d[l] = counts[l] ? d[l] : R(0);
        put(at, d);
    }
    __device__ __forceinline__ void through(void)
    {
    }
};

template <class M> static __global__ void __launch_bounds__(THREADS, M::AT_ONCE) mask_gradient(problem p)
{
    tern__kernel_begin();
    for (int64_t n = blockIdx.x; n < p.c.samples * p.c.channels * p.pieces; n += gridDim.x) {
        piece own = piece_of(p, n);
        mask_slopes<M> slopes(p, p.slopes[own.sample * p.c.channels + own.channel]);
        show_mask<M>(p, own, slopes);
    }
}

template <class R>
static __device__ __forceinline__ R class_slope(const problem &p, const tern__dice_slope &slope,
                                                const element<R> &e, R mean)
{
    R d = rise(p, slope, e);
    if (!p.attr.probabilities) d = e.p * (d - mean) + (R)slope.entropy * (e.p - e.t);
    return e.counts ? d : R(0);
}

/* A thread's state for positions whose channels it all has. */
template <class S> struct positions {
    typedef typename S::R R;
    int64_t label[S::LINES];
    bool counts[S::LINES];
    log_sum<R> norms[S::LINES];
    R mean[S::LINES]; /* mean of the derivatives, weighted by the probabilities */
};

/* Adds piece n of a stretch at channel c to the means; with LAST: writes its slopes minus the means. */
template <bool LAST, class S>
static __device__ __forceinline__ void look_at(const problem &p, int64_t from, int c, int64_t slopes,
                                               const tern__bunch<S::TYPE, S::LANES> &x, positions<S> *of)
{
    typedef typename S::R R;
    tern__dice_slope slope = p.slopes[slopes + c];
    R d[S::LANES];
#pragma unroll
    for (int l = 0; l < S::LANES; l++) {
        int k = S::line(l);
        element<R> e = class_element<R>(p, x.get(l), of->norms[k], of->counts[k], of->label[k] == c);
        if (LAST)
            d[l] = class_slope(p, slope, e, of->mean[k]);
        else
            of->mean[k] += e.p * rise(p, slope, e);
    }
    if (LAST) S::put(S::place(p.gradient, from, c), c, (int)p.c.channels, d, p.add);
}

template <int G, class S> static __global__ void __launch_bounds__(THREADS) class_gradient(problem p)
{
    tern__kernel_begin();
    const int size = (int)p.c.channels, pace = S::template pace<1>();
    int64_t step = (int64_t)gridDim.x * THREADS * S::LINES, count = p.c.samples * p.c.inner;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * S::LINES;
    for (; i < count; i += step) {
        int64_t sample = tern__quotient(i, p.c.inner), slopes = sample * size;
        int64_t from = i + sample * (size - 1) * p.c.inner;
        positions<S> of = {};
        S x;
        tern__labels_get(p.target, p.target_dtype, i, of.label);
        get_norms(p, from, &x, of.norms);
#pragma unroll
        for (int k = 0; k < S::LINES; k++) of.counts[k] = is_counted(p, i + k, of.label[k]);
        for (int c = 0; c < size && !p.attr.probabilities; c += pace) {
            x.template read<1>(p.along, from, c, size);
#pragma unroll
            for (int n = 0; n < S::PIECES; n++)
                if (c + n < size) look_at<false>(p, from, c + n, slopes, x.piece[n], &of);
        }
        for (int c = 0; c < size; c += pace) {
            x.template read<1>(p.along, from, c, size);
#pragma unroll
            for (int n = 0; n < S::PIECES; n++)
                if (c + n < size) look_at<true>(p, from, c + n, slopes, x.piece[n], &of);
        }
    }
}

/* With all channels in registers. The derivatives are computed twice, which costs less than storing them. */
template <class W>
static __global__ void __launch_bounds__(THREADS, sizeof(typename W::R) == 8 ? 1 : 2)
    whole_gradient(problem p)
{
    enum { BLOCK = THREADS / W::THREADS_EACH * W::LINES };
    typedef typename W::R R;
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * BLOCK, count = p.c.samples * p.c.inner;
    for (int64_t at = (int64_t)blockIdx.x * BLOCK; at < count; at += step) {
        int64_t i = at + W::position(), sample = tern__quotient(i, p.c.inner);
        int64_t from = i + sample * (p.c.channels - 1) * p.c.inner;
        const tern__dice_slope *slopes = p.slopes + sample * p.c.channels;
        R mean[W::LINES] = {};
        W all;
        if (W::is_through(i, count)) break;
        all.get(p, i, from, i < count);
#pragma unroll
        for (int c = 0; c < W::PIECES && c < all.channels; c++)
#pragma unroll
            for (int k = 0; k < W::LINES; k++)
                mean[k] += all.share[c][k] * rise(p, slopes[W::channel(c)], all.of(c, k));
#pragma unroll
        for (int k = 0; k < W::LINES; k++) mean[k] = tern__warp_join<tern__add>(mean[k], W::THREADS_EACH);
#pragma unroll
        for (int c = 0; c < W::PIECES && c < all.channels; c++) {
            tern__dice_slope slope = slopes[W::channel(c)];
            R d[W::LINES];
#pragma unroll
            for (int k = 0; k < W::LINES; k++) d[k] = class_slope(p, slope, all.of(c, k), mean[k]);
            W::stretch::put(W::stretch::place(p.gradient, from, W::channel(c)), W::channel(c),
                            (int)p.c.channels, d, p.add);
        }
    }
}

/* ---- launching ---- */

template <class W> static int start_whole(const tern__call *call, const problem &p)
{
    dim3 grid = tern__cuda_grid(call, p.c.samples * p.c.inner, THREADS / W::THREADS_EACH, W::LINES);
    return tern__cuda_launch(call, whole_gradient<W>, grid, THREADS, 0, p);
}

template <int DTYPE, int N> static int start_classes(const tern__call *call, const problem &p)
{
    typedef tern__stretch<DTYPE, N, N> S;
    typedef two_positions<DTYPE> two;
    if (!p.team) return TERN__SIDES_OF(call, p.lines, class_gradient, S, p);
    if constexpr (N > 1)
        if (p.c.channels <= FEW) return start_whole<whole<S>>(call, p);
    return are_beside(p, two::LINES) ? TEAM_OF(p, start_whole, two, call, p)
                                     : TEAM_OF(p, start_whole, one_position<DTYPE>, call, p);
}

template <class M> static int start_masks(const tern__call *call, const problem &p)
{
    dim3 grid = tern__cuda_grid(call, p.c.samples * p.c.channels * p.pieces, 1, 1);
    return tern__cuda_launch(call, mask_gradient<M>, grid, THREADS, 0, p);
}

static int start_gradient(const tern__call *call, const problem &p)
{
    int status = tern__cuda_launch(call, find_slopes, 1, THREADS, 0, p);
    if (status) return status;
    if (!p.attr.classes) return MASK_OF(p, start_masks, call, p);
    TERN__BUNCHED(p.x_dtype, are_side_by_side(p), start_classes, call, p);
}

int tern__cuda_dice_loss_grad(const tern__call *call)
{
    problem p;
    const tern__view *dloss = call->in[0];
    if (!problem_of(call, call->in[1], call->in[2], &p)) return TERN_E_UNSUPPORTED;
    if ((p.attr.each && !tern__view_is_contiguous(dloss)) || p.out_dtype != p.x_dtype)
        return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->in[1]) == 0) return TERN_OK;
    p.gradient.data = p.out;
    p.fours &= tern__fours_fit(p.out, p.out_dtype);
    p.dloss = dloss->data;
    p.dloss_dtype = dloss->dtype;
    p.sums = (tern__overlap *)call->in[3]->data;
    p.slopes = (tern__dice_slope *)tern__cuda_scratch(call, (size_t)(p.c.samples * p.c.channels) *
                                                                sizeof(tern__dice_slope));
    if (!p.slopes) return TERN_E_MEMORY;
    int status = start_gradient(call, p);
    tern__cuda_scratch_free(call, p.slopes);
    return status;
}
