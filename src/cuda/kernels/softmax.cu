/* softmax.cu - softmax and its logarithm along one dimension, and their gradients, which may overwrite dy.
 * Lines are read twice, the second time backward: from registers, then from a cache. Short rows are copied to
 * shared memory. */
#include "cuda/kernels/softmax.h"
#include "cuda/kernels.h"

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__lined a, b, out; /* a: x, or dy; b: y */
    tern__row_tile rows;
    bool add, is_log;
} problem;
} // namespace

template <int G, class S> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) forward(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner, step = tern__group_step<G>() * S::LINES;
    for (int64_t line = tern__group_first<G>() * S::LINES; line < count; line += step) {
        int64_t from = tern__lined_start(p.a, p.lines, line), to = tern__lined_start(p.out, p.lines, line);
        typename S::R base[S::LINES], share[S::LINES];
        tern__softmax_lines<G, S>(p.a, from, p.out, to, (int)p.lines.size, p.is_log, p.add, base, share);
    }
}

/* Adds a stretch of dy and y to the sums of their lines. */
template <int G, class S>
static __device__ __forceinline__ void take(const S &dy, const S &y, int i, int size, bool is_log,
                                            double (&sums)[S::LINES])
{
    typename S::R sum[S::LINES] = {};
#pragma unroll
    for (int n = 0; n < S::PIECES && S::template has<G>(i, n, size); n++)
#pragma unroll
        for (int l = 0; l < S::LANES; l++)
            sum[S::line(l)] += is_log ? dy.piece[n].get(l) : dy.piece[n].get(l) * y.piece[n].get(l);
#pragma unroll
    for (int k = 0; k < S::LINES; k++) sums[k] += (double)sum[k];
}

template <int G, class S>
static __device__ __forceinline__ void gradient_lines(const problem &p, int64_t line)
{
    typedef typename S::R R;
    const int64_t dy_from = tern__lined_start(p.a, p.lines, line),
                  y_from = tern__lined_start(p.b, p.lines, line);
    const int64_t to = tern__lined_start(p.out, p.lines, line);
    const int size = (int)p.lines.size, pace = S::template pace<G>(),
              first = S::template first<G>(p.a, dy_from);
    S dy, y;
    double sums[S::LINES] = {};
    R all[S::LINES];
    int next = first;
    for (; next < size; next += pace) {
        dy.template read<G>(p.a, dy_from, next, size);
        if (!p.is_log || next + pace >= size) y.template read<G>(p.b, y_from, next, size);
        take<G>(dy, y, next, size, p.is_log, sums);
    }
#pragma unroll
    for (int k = 0; k < S::LINES; k++) all[k] = (R)tern__group_sum<G>(sums[k]);
    for (int i = next - pace; i >= first; i -= pace) {
        if (i + pace < next) {
            dy.template read<G>(p.a, dy_from, i, size);
            y.template read<G>(p.b, y_from, i, size);
        }
        auto *place = S::place(p.out, to, i);
#pragma unroll
        for (int n = 0; n < S::PIECES && S::template has<G>(i, n, size); n++) {
            R dx[S::LANES];
#pragma unroll
            for (int l = 0; l < S::LANES; l++) {
                R d = dy.piece[n].get(l), of = y.piece[n].get(l), sum = all[S::line(l)];
                dx[l] = p.is_log ? d - S::exponential(of) * sum : of * (d - sum);
            }
            S::put(place, S::template at<G>(i, n, 0), size, dx, p.add);
            place += S::template leap<G>(p.out);
        }
    }
}

template <int G, class S> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner, step = tern__group_step<G>() * S::LINES;
    for (int64_t line = tern__group_first<G>() * S::LINES; line < count; line += step)
        gradient_lines<G, S>(p, line);
}

/* ---- rows ---- */

template <int DTYPE>
static __global__ void __launch_bounds__(TERN__ROW_THREADS, TERN__ROW_BLOCKS) forward_rows(problem p)
{
    typedef tern__number<DTYPE> R;
    tern__kernel_begin();
    R *tile = tern__rows_tile<R>(p.rows, 0);
    const int own = (int)threadIdx.x % TERN__WARP * p.rows.apart;
    for (int64_t first = tern__rows_first(); first < p.rows.count; first += tern__rows_step()) {
        tern__rows_read<DTYPE>(p.rows, p.a.data, first, tile);
        p.is_log ? tern__log_softmax_row(tile + own, p.rows.size)
                 : tern__softmax_row(tile + own, p.rows.size);
        tern__rows_write<DTYPE>(p.rows, p.out.data, first, tile, p.add);
    }
}

/* Turns a row of dy into its gradient, in place. */
template <class R>
static __device__ __forceinline__ void gradient_row(R *dy, const R *y, int size, bool is_log)
{
    R sum = 0;
#pragma unroll 4
    for (int c = 0; c < size; c++) sum += is_log ? dy[c] : dy[c] * y[c];
#pragma unroll 4
    for (int c = 0; c < size; c++) dy[c] = is_log ? dy[c] - exp(y[c]) * sum : y[c] * (dy[c] - sum);
}

template <int DTYPE>
static __global__ void __launch_bounds__(TERN__ROW_THREADS, TERN__ROW_BLOCKS) gradient_rows(problem p)
{
    typedef tern__number<DTYPE> R;
    tern__kernel_begin();
    R *dy = tern__rows_tile<R>(p.rows, 0), *y = tern__rows_tile<R>(p.rows, 1);
    const int own = (int)threadIdx.x % TERN__WARP * p.rows.apart;
    for (int64_t first = tern__rows_first(); first < p.rows.count; first += tern__rows_step()) {
        tern__rows_read<DTYPE>(p.rows, p.a.data, first, dy);
        tern__rows_read<DTYPE>(p.rows, p.b.data, first, y);
        gradient_row(dy + own, y + own, p.rows.size, p.is_log);
        tern__rows_write<DTYPE>(p.rows, p.out.data, first, dy, p.add);
    }
}

/* ---- launching ---- */

static bool problem_of(const tern__call *call, bool is_log, problem *p)
{
    int64_t dim = ((const tern__dim_attr *)call->attr)->dim;
    *p = {};
    p->lines = tern__lines_of(call->out[0], dim);
    p->add = call->add[0];
    p->is_log = is_log;
    return p->lines.size <= TERN__LINE_LIMIT && tern__lined_of(call->in[0], dim, &p->a) &&
           (!call->in[1] || tern__lined_of(call->in[1], dim, &p->b)) &&
           tern__lined_of(call->out[0], dim, &p->out);
}

/* Whether all operands have one dtype, the type of the computation. */
static bool is_one_dtype(const tern__call *call)
{
    const tern__view *like = call->out[0];
    return call->in[0]->dtype == like->dtype && (!call->in[1] || call->in[1]->dtype == like->dtype);
}

template <int DTYPE, int N> static int start_forward(const tern__call *call, const problem &p, int group)
{
    typedef tern__stretch<DTYPE, N> S;
    return TERN__GROUPS_OF(call, p.lines, group, forward, S, p);
}

template <int DTYPE, int N> static int start_gradient(const tern__call *call, const problem &p, int group)
{
    typedef tern__stretch<DTYPE, N> S;
    return TERN__GROUPS_OF(call, p.lines, group, gradient, S, p);
}

template <int DTYPE, int N> static int start_side_by_side(const tern__call *call, const problem &p, bool back)
{
    typedef tern__stretch<DTYPE, N, N> S;
    typedef tern__whole_lines<DTYPE> W;
    if (!back && p.lines.size > S::PIECES && p.lines.size <= W::PIECES)
        return TERN__SIDES_OF(call, p.lines, forward, W, p);
    return back ? TERN__SIDES_OF(call, p.lines, gradient, S, p)
                : TERN__SIDES_OF(call, p.lines, forward, S, p);
}

template <int DTYPE, int> static int start_rows(const tern__call *call, problem p, bool back)
{
    p.rows = tern__rows_of(&p.lines);
    return tern__cuda_launch(call, back ? gradient_rows<DTYPE> : forward_rows<DTYPE>,
                             tern__cuda_grid(call, p.rows.count, TERN__ROW_THREADS, 1), TERN__ROW_THREADS,
                             tern__rows_bytes(p.rows, 1 + back, DTYPE), p);
}

/* Whether `fit` holds for all operands. */
static bool are(const problem &p, bool fit(const tern__lined *, const tern__lines *))
{
    return fit(&p.a, &p.lines) && (!p.b.data || fit(&p.b, &p.lines)) && fit(&p.out, &p.lines);
}

static int start(const tern__call *call, bool is_log, bool is_gradient)
{
    problem p;
    if (!is_one_dtype(call) || !problem_of(call, is_log, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->out[0]) == 0) return TERN_OK;
    int group = tern__group_size(&p.lines, &p.a), dtype = p.a.dtype;
    bool bunched = tern__lined_alike(&p.a, &p.out, &p.lines) &&
                   (!is_gradient || tern__lined_alike(&p.b, &p.out, &p.lines));
    if (are(p, tern__lined_side_by_side))
        TERN__BUNCHED(dtype, true, start_side_by_side, call, p, is_gradient);
    if (tern__rows_short(&p.lines, 1 + is_gradient, dtype) && are(p, tern__lined_rows))
        TERN__BUNCHED(dtype, false, start_rows, call, p, is_gradient);
    if (is_gradient) TERN__BUNCHED(dtype, bunched, start_gradient, call, p, group);
    TERN__BUNCHED(dtype, bunched, start_forward, call, p, group);
}

int tern__cuda_softmax(const tern__call *call)
{
    return start(call, false, false);
}

int tern__cuda_softmax_grad(const tern__call *call)
{
    return start(call, false, true);
}

int tern__cuda_log_softmax(const tern__call *call)
{
    return start(call, true, false);
}

int tern__cuda_log_softmax_grad(const tern__call *call)
{
    return start(call, true, true);
}
