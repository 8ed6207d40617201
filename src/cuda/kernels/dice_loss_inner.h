/* dice_loss_inner.h - what the forward and backward kernels of Dice share: elements and their targets, and
 * how a thread reads them. */
#ifndef TERN_SRC_CUDA_KERNELS_DICE_LOSS_INNER_H
#define TERN_SRC_CUDA_KERNELS_DICE_LOSS_INNER_H

#include "cuda/kernels.h"
#include "cuda/kernels/softmax.h"

extern "C" {
#include "kernels/dice_loss.h"
}

#define THREADS 256
#define LEAST   4096 /* elements of a piece                                   */
#define BLOCKS  2048 /* pieces at most, unless there are more channels */
#define ROUND   4096 /* elements of a mask that a block reads at a time */

namespace
{
typedef struct problem {
    tern__dice_attr attr;
    tern__channels c;
    const void *x, *target, *dloss;
    void *norms; /* of a map with too many channels for a team: tops of all positions, their rests, then their
                    labels */
    void *out;   /* the loss, or dx */
    int x_dtype, target_dtype, dloss_dtype, out_dtype, pieces;
    int64_t each; /* elements of a piece */
    int team;     /* threads that together hold all channels of a position; 0: too many channels */
    bool checks;  /* a mask of integers, which must be 0 or 1 */
    bool add, fours;
    tern__judge judge;
    tern__lines lines; /* of a map of classes: along its channels */
    tern__lined along, gradient;
    double *partial; /* [channel of a sample][piece][TERN__OVERLAP] */
    tern__overlap *sums;
    tern__dice_slope *slopes;
} problem;

/* One element: its probability, its target, and its share of the position's cross entropy. */
template <class R> struct element {
    bool counts;
    R p, t, entropy;
};
} // namespace

/* Whether a label counts; `i` is its index in the target. */
static __device__ __forceinline__ bool is_counted(const problem &p, int64_t i, int64_t label)
{
    return label != p.attr.ignored && tern__is_class(p.judge, i, label);
}

/* The ignored value as R; NaN, which equals no target, if R cannot represent it. */
template <class R> static __device__ __forceinline__ R ignored_as(const problem &p)
{
    return (double)(R)p.attr.ignored == (double)p.attr.ignored ? (R)p.attr.ignored : (R)NAN;
}

/* A position's log sum exp in two numbers: the largest channel, and the rest. A single number would lose
 * the differences of large logits to rounding. */
template <class R> struct log_sum {
    R top, rest;
};

template <class R>
static __device__ __forceinline__ element<R> class_element(const problem &p, R x, const log_sum<R> &by,
                                                           bool counts, bool is_label)
{
    element<R> e = {counts, x, (R)is_label, 0};
    if (!p.attr.probabilities) e.p = exp(x - by.top - by.rest);
    if (is_label) e.entropy = by.top - x + by.rest;
    return e;
}

/* The log sum exp of positions, reading channels in stretches S; 0 if x is probabilities. */
template <class S>
static __device__ __forceinline__ void get_norms(const problem &p, int64_t from, S *values,
                                                 log_sum<typename S::R> (&norms)[S::LINES])
{
    typename S::R top[S::LINES], sum[S::LINES];
    tern__softmax_find<1, S>(p.along, from, (int)p.c.channels, values, top, sum);
#pragma unroll
    for (int k = 0; k < S::LINES; k++)
        if (!p.attr.probabilities) norms[k] = {top[k], (typename S::R)log(sum[k])};
}

/* Channels that a thread can hold in registers: FEW for as many positions as fit into 16 bytes, MANY for
 * two positions or one; half as many in double. */
#define FEW  4
#define MANY TERN__LINE_WHOLE
template <int DTYPE> using one_position = tern__stretch<DTYPE, 1, 1, MANY>;
template <int DTYPE> using two_positions = tern__whole_lines<DTYPE>;

/* Neighbouring positions with all their channels, as many as a stretch S has pieces or fewer for each
 * thread of a TEAM of neighbours, of which each has every TEAMth channel. They are read once, and the
 * softmax is computed in registers. */
template <class S, int TEAM = 1> struct whole {
    typedef S stretch;
    typedef typename S::R R;
    enum { LINES = S::LINES, PIECES = S::PIECES, THREADS_EACH = TEAM };
    int channels;     /* of this thread; 0 after the last position */
    int label[LINES]; /* -1: ignored */
    R share[PIECES][LINES];
    R entropy[LINES]; /* set in the thread that has the label's channel */

    /* The index of the team's first position among the block's. */
    static __device__ __forceinline__ int position(void)
    {
        return (int)threadIdx.x / TEAM * LINES;
    }
    static __device__ __forceinline__ int channel(int piece)
    {
        return piece * TEAM + (int)threadIdx.x % TEAM;
    }
    /* Whether the thread may end: with teams all threads of a team end together. */
    static __device__ __forceinline__ bool is_through(int64_t i, int64_t last)
    {
        return TEAM == 1 && i >= last;
    }
    /* The piece with the label's channel, or -1. */
    __device__ __forceinline__ int of_label(int k) const
    {
        return label[k] % TEAM == channel(0) ? label[k] / TEAM : -1;
    }
    /* Called by all threads of a team. */
    __device__ __forceinline__ void get(const problem &p, int64_t i, int64_t from, bool is_in)
    {
        const bool is_there = TEAM == 1 || is_in;
        int64_t target[LINES] = {};
        tern__lined every = p.along;
        bool is_wrong = false;
        S x;
        channels = is_there ? ((int)p.c.channels - channel(0) + TEAM - 1) / TEAM : 0;
        every.step *= TEAM;
        if (is_there) tern__labels_get(p.target, p.target_dtype, i, target);
        x.template read<1>(every, from + channel(0) * p.along.step, 0, channels);
#pragma unroll
        for (int k = 0; k < LINES; k++) {
            bool is_class = tern__in_classes(p.judge, target[k]), is_ignored = target[k] == p.attr.ignored;
            label[k] = is_there && is_class && !is_ignored ? (int)target[k] : -1;
            is_wrong |= !is_class && !is_ignored;
            take(x, k);
            if (!p.attr.probabilities) normalise(k);
        }
        if (is_wrong) tell(p, i);
    }
    /* Reports labels that are no classes. Reads them again, so that the check occurs only once in a
     * kernel's code. */
    static __device__ __forceinline__ void tell(const problem &p, int64_t i)
    {
#pragma unroll 1
        for (int k = 0; k < LINES; k++) {
            int64_t target[1];
            tern__labels_get(p.target, p.target_dtype, i + k, target);
            is_counted(p, i + k, target[0]);
        }
    }
    __device__ __forceinline__ void take(const S &x, int k)
    {
        R own = 0;
#pragma unroll
        for (int c = 0; c < PIECES && c < channels; c++) {
            share[c][k] = x.piece[c].get(k);
            if (c == of_label(k)) own = share[c][k];
        }
        entropy[k] = -own;
    }
    __device__ __forceinline__ void normalise(int k)
    {
        R top = -INFINITY, sum = 0;
#pragma unroll
        for (int c = 0; c < PIECES && c < channels; c++) top = share[c][k] > top ? share[c][k] : top;
        top = tern__warp_join<tern__high>(top, TEAM);
        if (!(top > -INFINITY)) top = 0;
#pragma unroll
        for (int c = 0; c < PIECES && c < channels; c++) sum += share[c][k] = exp(share[c][k] - top);
        sum = tern__warp_join<tern__add>(sum, TEAM);
        entropy[k] += top;
        entropy[k] += log(sum);
        sum = 1 / sum;
#pragma unroll
        for (int c = 0; c < PIECES && c < channels; c++) share[c][k] *= sum;
    }
    __device__ __forceinline__ element<R> of(int c, int k) const
    {
        bool is_label = c == of_label(k);
        return {label[k] >= 0, share[c][k], (R)is_label, is_label ? entropy[k] : R(0)};
    }
};

/* Returns the team size for a map of classes: the smallest with few enough channels per thread. */
static int team_of(const problem &p)
{
    const int64_t most = p.x_dtype == TERN_F64 ? MANY / 2 : MANY;
    for (int team : {1, 4, 8, 16})
        if (p.c.channels <= team * most) return team;
    return 0;
}

/* start<W> with the thread type W of p's team, whose positions are in stretches S. */
#define TEAM_OF(p, start, S, ...)                                                                            \
    ((p).team == 1   ? start<whole<S, 1>>(__VA_ARGS__)                                                       \
     : (p).team == 4 ? start<whole<S, 4>>(__VA_ARGS__)                                                       \
     : (p).team == 8 ? start<whole<S, 8>>(__VA_ARGS__)                                                       \
                     : start<whole<S, 16>>(__VA_ARGS__))

/* A piece of a channel of a sample: elements first to last - 1 of all elements. The next piece belongs to
 * the next channel and has the same positions. */
namespace
{
typedef struct piece {
    int64_t sample, channel, number, first, last;
} piece;
} // namespace

static __device__ __forceinline__ piece piece_of(const problem &p, int64_t n)
{
    int64_t round = tern__quotient(n, p.c.channels), sample = tern__quotient(round, p.pieces);
    int64_t number = round - sample * p.pieces, channel = n - round * p.c.channels;
    int64_t from = (sample * p.c.channels + channel) * p.c.inner;
    return {sample, channel, number, from + number * p.each,
            from + TERN__MIN((number + 1) * p.each, p.c.inner)};
}

/* Whether `count` positions can be read and written at a time. */
static bool are_beside(const problem &p, int count)
{
    return tern__lined_beside(&p.along, &p.lines, count) && tern__lined_beside(&p.gradient, &p.lines, count);
}

static bool are_side_by_side(const problem &p)
{
    return are_beside(p, tern__bunch_most(p.x_dtype));
}

/* Whether the elements of the target can be read as u8. */
static bool is_of_bytes(const problem &p)
{
    return p.target_dtype == TERN_U8 || p.target_dtype == TERN_BOOL;
}

/* Whether a target of bytes can hold the ignored value. */
static bool can_ignore(const problem &p)
{
    return p.attr.ignored >= 0 && p.attr.ignored <= UINT8_MAX;
}

/* Cuts into at most `pieces` pieces of whole rounds: a partial round takes a block as long as a whole one. */
static void cut(problem *p, int64_t pieces, int64_t round)
{
    int64_t each = (p->c.inner + pieces - 1) / pieces;
    p->each = TERN__MAX((each + round - 1) / round, (int64_t)1) * round;
    p->pieces = tern__sum_pieces(p->c.inner, p->each, pieces);
}

/* Returns the pieces per line for pieces of at least `least` elements. */
static int64_t pieces_of(const problem &p, int64_t lines, int64_t least)
{
    int64_t most = BLOCKS / TERN__MAX(lines, (int64_t)1);
    return tern__sum_pieces(p.c.inner, least, TERN__MIN(most, (int64_t)TERN__SUM_MOST));
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
    p->fours = tern__fours_fit(p->x, p->x_dtype) && tern__fours_fit(p->target, p->target_dtype);
    p->team = p->attr.classes ? team_of(*p) : 0;
    p->lines = {p->c.samples, p->c.channels, p->c.inner};
    p->along = {(void *)p->x, p->x_dtype, p->c.channels * p->c.inner, p->c.inner, 1};
    p->gradient = p->along;
    cut(p, pieces_of(*p, p->c.samples * p->c.channels, LEAST), ROUND);
    return tern__view_is_contiguous(x) && tern__view_is_contiguous(target) &&
           tern__view_is_contiguous(call->out[0]);
}

#endif
