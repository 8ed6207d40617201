/* nll_loss_grad.cu - the gradients of the losses of labels (kernels/nll_loss.h).
 *
 * A thread, a warp or a block takes all classes of a label. Short rows go through shared memory, one per
 * thread. */
#include "cuda/kernels/nll_loss_inner.h"

/* ---- lines ---- */

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

/* ---- rows ---- */

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

/* Turns a row of log probabilities into its gradient, in place. */
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

/* ---- launching ---- */

/* `label`: the index of the label among the inputs; the later ones follow it in both gradients. */
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

/* Lines are read once, so no cache needs to hold them: if they are many, several blocks of a multiprocessor
 * hide each other's waiting. */
template <int DTYPE, int N> static int start_gradient(const tern__call *call, const problem &p)
{
    typedef tern__stretch<DTYPE, N> S;
    const bool are_many = p.lines.outer * p.lines.inner >= TERN__LINE_MANY / 4;
    const int size = tern__group_size(&p.lines, &p.out), group = are_many ? TERN__MIN(size, THREADS) : size;
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
    TERN__BUNCHED(dx->dtype, tern__lined_alike(&p.out, &p.logp, &p.lines), start_gradient, call, p);
}
