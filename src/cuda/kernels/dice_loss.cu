/* dice_loss.cu - Dice and cross entropy with it (kernels/dice_loss.h).
 *
 * Every channel of a sample is cut into pieces, and a block computes the five sums of a piece. With a map
 * of classes a thread, or a team of several, holds all channels of its positions, and its block sums all
 * channels: in registers if they are few, else in shared memory. If there are more classes than a team's
 * registers can hold, a first kernel writes each position's log sum exp and label; then blocks of
 * neighbouring channels, which run at the same time, find these in the cache. A last kernel joins the
 * pieces, and one block computes the loss. */
#include "cuda/kernels/dice_loss_mask.h"

#define SLOTS 128 /* threads that keep sums in shared memory */
#define SLOT  64  /* most numbers added up in a slot */

/* ---- masks ---- */

/* A thread's sums over a piece: totals, and the latest batch. Cross entropy needs the logarithm of 1 +
 * e^-|x| for each element. One logarithm is taken of the product of these; only the product minus 1 is
 * stored, so that small values are not rounded away. */
template <class M> struct mask_sums {
    typedef typename M::R R;
    const problem &p;
    double all[TERN__OVERLAP];
    R few[TERN__OVERLAP], rest;

    __device__ __forceinline__ explicit mask_sums(const problem &of) : p(of), all{}, few{}, rest(0)
    {
    }
    template <int N> __device__ __forceinline__ void add(const R (&x)[N], const R (&t)[N])
    {
#pragma unroll
        for (int l = 0; l < N; l++) {
            few[0] += x[l] * t[l];
            few[1] += p.attr.squared ? x[l] * x[l] : x[l];
            few[2] += p.attr.squared && !M::OF_BYTES ? t[l] * t[l] : t[l];
        }
    }
    template <int N> __device__ __forceinline__ void add_logits(const R (&x)[N], const R (&t)[N])
    {
        R shares[N];
#pragma unroll
        for (int l = 0; l < N; l++) {
            const sigmoid<R> of = sigmoid_of(x[l]);
            few[3] += (x[l] > 0 ? x[l] : R(0)) - x[l] * t[l];
            rest = of.tail + (rest * of.tail + rest);
            shares[l] = probability(x[l], of);
        }
        add(shares, t);
    }
    template <int N> __device__ __forceinline__ void take(int64_t at, R (&x)[N], R (&t)[N])
    {
        bool counts[N];
        few[4] += leave_out<M>(p, at, x, t, counts);
        p.attr.probabilities ? add(x, t) : add_logits(x, t);
    }
    __device__ __forceinline__ void through(void)
    {
        few[3] += log1p(rest);
#pragma unroll
        for (int k = 0; k < TERN__OVERLAP; k++) all[k] += (double)few[k], few[k] = 0;
        rest = 0;
    }
};

template <class M> static __global__ void __launch_bounds__(THREADS, M::AT_ONCE) add_masks(problem p)
{
    tern__kernel_begin();
    for (int64_t n = blockIdx.x; n < p.c.samples * p.c.channels * p.pieces; n += gridDim.x) {
        piece own = piece_of(p, n);
        mask_sums<M> sums(p);
        show_mask<M>(p, own, sums);
        tern__block_sums(sums.all);
        int64_t to = ((own.sample * p.c.channels + own.channel) * p.pieces + own.number) * TERN__OVERLAP;
        for (int k = 0; k < TERN__OVERLAP && threadIdx.x == 0; k++) p.partial[to + k] = sums.all[k];
    }
}

/* A position counts for its label's channel, so the last sum equals that of the targets. */
enum { BOTH, X, TARGET, ENTROPY, OWN };

/* Writes a block's sums of a channel of a sample in a piece. */
static __device__ __forceinline__ void leave(const problem &p, int64_t sample, int64_t channel,
                                             int64_t number, int which, double sum)
{
    double *to = p.partial + ((sample * p.c.channels + channel) * p.pieces + number) * TERN__OVERLAP;
    to[which] = sum;
    if (which == TARGET) to[TERN__OVERLAP - 1] = sum;
}

/* ---- a thread or a team holds all channels of its positions ---- */

/* Sums of FEW channels in registers, by threads W that hold all of them. */
template <class W> struct sums_in_registers {
    typedef typename W::R R;
    enum { BLOCK = THREADS, AT_ONCE = 2 };
    double sums[W::PIECES * OWN];

    __device__ __forceinline__ void clear(const problem &)
    {
#pragma unroll
        for (int n = 0; n < W::PIECES * OWN; n++) sums[n] = 0;
    }
    __device__ __forceinline__ void add_channel(const problem &p, const W &all, int c)
    {
        R few[OWN] = {0};
#pragma unroll
        for (int k = 0; k < W::LINES; k++) {
            element<R> e = all.of(c, k);
            if (!e.counts) e.p = 0;
            few[BOTH] += e.p * e.t;
            few[X] += p.attr.squared ? e.p * e.p : e.p;
            few[TARGET] += e.t;
            few[ENTROPY] += e.entropy;
        }
#pragma unroll
        for (int o = 0; o < OWN; o++) sums[c * OWN + o] += (double)few[o];
    }
    __device__ __forceinline__ void add(const problem &p, const W &all)
    {
#pragma unroll
        for (int c = 0; c < W::PIECES && c < all.channels; c++) add_channel(p, all, c);
    }
    __device__ __forceinline__ void put(const problem &p, int64_t sample, int64_t number)
    {
        tern__block_sums(sums);
#pragma unroll
        for (int n = 0; n < W::PIECES * OWN; n++)
            if (threadIdx.x == 0 && n / OWN < p.c.channels)
                leave(p, sample, n / OWN, number, n % OWN, sums[n]);
    }
};

/* Sums of the MANY channels of each thread W in shared memory, with a slot per thread, channel and sum, so
 * that nothing is joined until the end: pieces are so short that at most SLOT numbers are added up in a
 * slot. What counts for the label's channel only is added directly to its slot. */
template <class W> struct sums_in_slots {
    typedef typename W::R R;
    enum { TEAM = W::THREADS_EACH, BLOCK = SLOTS, AT_ONCE = sizeof(R) == 8 ? 2 : 4 };
    R *own; /* the thread's first slot; the others follow at distances of SLOTS */

    /* The slots of a thread. */
    static __host__ __device__ __forceinline__ int each(const problem &p)
    {
        return ((int)p.c.channels + TEAM - 1) / TEAM * OWN;
    }
    __device__ __forceinline__ void clear(const problem &p)
    {
        own = (R *)tern__cuda_shared() + threadIdx.x;
        for (int n = 0; n < each(p); n++) own[n * SLOTS] = 0;
    }
    __device__ __forceinline__ R &slot(int piece, int which)
    {
        return own[(piece * OWN + which) * SLOTS];
    }
    __device__ __forceinline__ void add_channel(const problem &p, const W &all, int c)
    {
        R few = 0;
#pragma unroll
        for (int k = 0; k < W::LINES; k++) {
            R share = all.label[k] < 0 ? R(0) : all.share[c][k];
            few += p.attr.squared ? share * share : share;
        }
        slot(c, X) += few;
    }
    __device__ __forceinline__ void add(const problem &p, const W &all)
    {
#pragma unroll
        for (int c = 0; c < W::PIECES && c < all.channels; c++) add_channel(p, all, c);
#pragma unroll
        for (int k = 0; k < W::LINES; k++) {
            int c = all.of_label(k);
            if (c < 0) continue;
            slot(c, BOTH) += p.attr.probabilities ? -all.entropy[k] : exp(-all.entropy[k]);
            slot(c, TARGET) += 1;
            slot(c, ENTROPY) += all.entropy[k];
        }
    }
    /* Called by a warp: the sum over the threads' slots for one of a channel's sums. */
    static __device__ __forceinline__ double sum(int channel, int which)
    {
        const int piece = channel / TEAM, thread = channel % TEAM;
        const R *slots = (const R *)tern__cuda_shared() + (piece * OWN + which) * SLOTS + thread;
        double sum = 0;
        for (int i = (int)threadIdx.x % TERN__WARP; i < SLOTS / TEAM; i += TERN__WARP)
            sum += (double)slots[i * TEAM];
        return tern__warp_sum(sum);
    }
    __device__ __forceinline__ void put(const problem &p, int64_t sample, int64_t number)
    {
        __syncthreads();
        for (int n = (int)threadIdx.x / TERN__WARP; n < (int)p.c.channels * OWN; n += SLOTS / TERN__WARP) {
            double all = sum(n / OWN, n % OWN);
            if (threadIdx.x % TERN__WARP == 0) leave(p, sample, n / OWN, number, n % OWN, all);
        }
        __syncthreads(); /* before slots are cleared again */
    }
};

template <class W, class SUMS>
static __global__ void __launch_bounds__(SUMS::BLOCK, SUMS::AT_ONCE) add_positions(problem p)
{
    enum { STEP = SUMS::BLOCK / W::THREADS_EACH * W::LINES };
    tern__kernel_begin();
    for (int64_t n = blockIdx.x; n < p.c.samples * p.pieces; n += gridDim.x) {
        int64_t sample = tern__quotient(n, p.pieces), number = n - sample * p.pieces;
        int64_t last = TERN__MIN((number + 1) * p.each, p.c.inner);
        SUMS sums;
        sums.clear(p);
        for (int64_t at = number * p.each; at < last; at += STEP) {
            int64_t i = at + W::position();
            W all;
            if (W::is_through(i, last)) break;
            all.get(p, sample * p.c.inner + i, sample * p.c.channels * p.c.inner + i, i < last);
            sums.add(p, all);
        }
        sums.put(p, sample, number);
    }
}

/* ---- too many channels for that ---- */

/* Tops, rests and labels (-1: ignored) of N neighbouring positions, stored as all tops, all rests, all
 * labels. N is 1, or fills 16 bytes. */
namespace
{
template <class T, int N> struct alignas(N == 1 ? sizeof(T) : 16) numbers {
    T v[N];
};
template <class R, int N> struct norms {
    numbers<R, N> top, rest;
    numbers<int, N> label;
};
} // namespace

template <class R, int N> static __device__ __forceinline__ numbers<R, N> *tops(const problem &p, int which)
{
    return (numbers<R, N> *)((R *)p.norms + which * p.c.samples * p.c.inner);
}
template <class R, int N> static __device__ __forceinline__ numbers<int, N> *labels(const problem &p)
{
    return (numbers<int, N> *)tops<R, N>(p, 2);
}

template <int G, class S> static __global__ void __launch_bounds__(THREADS) find_norms(problem p)
{
    tern__kernel_begin();
    typedef typename S::R R;
    enum { N = S::LINES };
    int64_t step = (int64_t)gridDim.x * THREADS * N, count = p.c.samples * p.c.inner;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    for (; i < count; i += step) {
        int64_t sample = tern__quotient(i, p.c.inner), label[N];
        log_sum<R> sums[N] = {};
        norms<R, N> found;
        S values;
        tern__labels_get(p.target, p.target_dtype, i, label);
        if (!p.attr.probabilities) get_norms(p, i + sample * (p.c.channels - 1) * p.c.inner, &values, sums);
#pragma unroll
        for (int k = 0; k < N; k++) {
            found.top.v[k] = sums[k].top, found.rest.v[k] = sums[k].rest;
            found.label.v[k] = is_counted(p, i + k, label[k]) ? (int)label[k] : -1;
        }
        tops<R, N>(p, 0)[i / N] = found.top;
        tops<R, N>(p, 1)[i / N] = found.rest;
        labels<R, N>(p)[i / N] = found.label;
    }
}

/* Adds neighbouring positions of one channel. */
template <int DTYPE, int N>
static __device__ __forceinline__ void add_channel(const problem &p, int64_t at, int64_t i, int channel,
                                                   double (&sums)[OWN])
{
    typedef tern__number<DTYPE> R;
    const tern__bunch<DTYPE, N> x = tern__bunch_get<DTYPE, N>(p.x, at);
    const norms<R, N> of = {tops<R, N>(p, 0)[i / N], tops<R, N>(p, 1)[i / N], labels<R, N>(p)[i / N]};
    R few[OWN] = {0};
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int label = of.label.v[k];
        element<R> e = class_element(p, x.get(k), {of.top.v[k], of.rest.v[k]}, label >= 0, label == channel);
        if (!e.counts) e.p = 0;
        few[BOTH] += label == channel ? e.p : R(0);
        few[X] += p.attr.squared ? e.p * e.p : e.p;
        few[TARGET] += e.t;
        few[ENTROPY] += e.entropy;
    }
#pragma unroll
    for (int o = 0; o < OWN; o++) sums[o] += (double)few[o];
}

template <int DTYPE, int N> static __global__ void __launch_bounds__(THREADS) add_channels(problem p)
{
    tern__kernel_begin();
    for (int64_t n = blockIdx.x; n < p.c.samples * p.c.channels * p.pieces; n += gridDim.x) {
        piece own = piece_of(p, n);
        int64_t back = (own.sample * (p.c.channels - 1) + own.channel) * p.c.inner;
        double sums[OWN] = {0};
#pragma unroll 2
        for (int64_t at = own.first + threadIdx.x * N; at < own.last; at += THREADS * N)
            add_channel<DTYPE, N>(p, at, at - back, (int)own.channel, sums);
        tern__block_sums(sums);
        for (int o = 0; o < OWN && threadIdx.x == 0; o++)
            leave(p, own.sample, own.channel, own.number, o, sums[o]);
    }
}

/* ---- joining pieces ---- */

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

/* Run by one block. */
static __global__ void close(problem p)
{
    tern__kernel_begin();
    int64_t count = tern__dice_regions(&p.attr, &p.c);
    double sums[3] = {0, 0, 0}; /* sum of Dice over regions, cross entropy, number of elements */
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

/* ---- launching ---- */

/* Launches pieces of each channel of a sample. */
static int start_pieces(const tern__call *call, const problem &p, void (*add)(problem))
{
    int64_t pieces = p.c.samples * p.c.channels * p.pieces;
    return pieces ? tern__cuda_launch(call, add, tern__cuda_grid(call, pieces, 1, 1), THREADS, 0, p)
                  : TERN_OK;
}

template <class M> static int start_masks(const tern__call *call, const problem &p)
{
    return start_pieces(call, p, add_masks<M>);
}

template <class W, class SUMS>
static int start_positions(const tern__call *call, const problem &p, size_t shared)
{
    int64_t pieces = p.c.samples * p.pieces;
    if (!pieces) return TERN_OK;
    dim3 grid = tern__cuda_grid(call, pieces, 1, 1);
    return tern__cuda_launch(call, add_positions<W, SUMS>, grid, SUMS::BLOCK, shared, p);
}

static bool is_few(const problem &p)
{
    return p.c.channels <= FEW && are_side_by_side(p);
}

/* Cuts positions with all channels into pieces. A piece has at least eight positions per team, and a
 * multiple of what all teams take at a time; with slots at most SLOT per thread. */
static void cut_positions(problem *p)
{
    int teams = SLOTS / p->team;
    if (is_few(*p)) {
        cut(p, pieces_of(*p, p->c.samples, 8 * THREADS), 8 * THREADS);
        return;
    }
    int64_t least = (p->c.inner + SLOT * teams - 1) / (SLOT * teams);
    cut(p, TERN__MAX(pieces_of(*p, p->c.samples, 8 * teams), least), 2 * teams);
}

template <class W> static int start_slots(const tern__call *call, const problem &p)
{
    typedef sums_in_slots<W> sums;
    return start_positions<W, sums>(call, p, sums::each(p) * SLOTS * sizeof(typename W::R));
}

template <int DTYPE, int N> static int start_whole(const tern__call *call, const problem &p)
{
    typedef two_positions<DTYPE> two;
    if constexpr (N > 1) {
        typedef whole<tern__stretch<DTYPE, N, N>> few;
        if (p.c.channels <= FEW) return start_positions<few, sums_in_registers<few>>(call, p, 0);
    }
    return are_beside(p, two::LINES) ? TEAM_OF(p, start_slots, two, call, p)
                                     : TEAM_OF(p, start_slots, one_position<DTYPE>, call, p);
}

static int sum_positions(const tern__call *call, const problem &p)
{
    TERN__BUNCHED(p.x_dtype, are_side_by_side(p), start_whole, call, p);
}

template <int DTYPE, int N> static int start_channels(const tern__call *call, const problem &p)
{
    typedef tern__stretch<DTYPE, N, N> S;
    int status = p.lines.inner ? TERN__SIDES_OF(call, p.lines, find_norms, S, p) : TERN_OK;
    return status ? status : start_pieces(call, p, add_channels<DTYPE, N>);
}

static int sum_channels(const tern__call *call, const problem &p)
{
    TERN__BUNCHED(p.x_dtype, are_side_by_side(p), start_channels, call, p);
}

static int start_forward(const tern__call *call, const problem *p)
{
    int64_t values = p->c.samples * p->c.channels * TERN__OVERLAP;
    int status = p->team           ? sum_positions(call, *p)
                 : p->attr.classes ? sum_channels(call, *p)
                                   : MASK_OF(*p, start_masks, call, *p);
    dim3 grid = tern__cuda_grid(call, values, THREADS / TERN__WARP, 1);
    if (!status && values) status = tern__cuda_launch(call, join_pieces, grid, THREADS, 0, *p);
    return status ? status : tern__cuda_launch(call, close, 1, THREADS, 0, *p);
}

int tern__cuda_dice_loss(const tern__call *call)
{
    problem p;
    if (!problem_of(call, call->in[0], call->in[1], &p)) return TERN_E_UNSUPPORTED;
    if (p.team) cut_positions(&p);
    bool needs_norms = p.attr.classes && !p.team;
    int64_t channels = p.c.samples * p.c.channels, size = p.x_dtype == TERN_F64 ? 8 : 4;
    p.sums = (tern__overlap *)call->out[1]->data;
    p.partial = (double *)tern__cuda_scratch(call, (size_t)(channels * p.pieces) * sizeof(tern__overlap));
    if (needs_norms) p.norms = tern__cuda_scratch(call, (size_t)(p.c.samples * p.c.inner * (2 * size + 4)));
    bool has_room = p.partial && (p.norms || !needs_norms);
    int status = has_room ? start_forward(call, &p) : TERN_E_MEMORY;
    tern__cuda_scratch_free(call, p.norms);
    tern__cuda_scratch_free(call, p.partial);
    return status;
}
