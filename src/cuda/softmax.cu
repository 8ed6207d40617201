/* softmax.cu - softmax and its logarithm along one dimension, and their gradients, which may be written over
 * dy. A line of them is gone through twice, the second time in a cache, or in registers where it is short. */
#include "cuda/softmax.h"
#include "cuda/kernels.h"

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__lined a, b, out; /* x; or dy and y */
    bool add, is_log;
} problem;
} // namespace

template <int G, class S> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) forward(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t o = tern__quotient(line, p.lines.inner), n = line - o * p.lines.inner;
        int64_t from = o * p.a.outer + n * p.a.inner, to = o * p.out.outer + n * p.out.inner;
        tern__softmax_line<G, S>(p.a, from, p.out, to, p.lines.size, p.is_log, p.add);
    }
}

/* What a stretch of dy, and of y, adds to the sum of their line. */
template <int G, class S>
static __device__ __forceinline__ double take(const S &dy, const S &y, int64_t i, int64_t size, bool is_log)
{
    typename S::R sum = 0;
#pragma unroll
    for (int n = 0; n < S::PIECES; n++)
#pragma unroll
        for (int l = 0; l < S::LANES && i + n * G * S::LANES < size; l++)
            sum += is_log ? dy.piece[n].get(l) : dy.piece[n].get(l) * y.piece[n].get(l);
    return (double)sum;
}

template <int G, class S>
static __device__ __forceinline__ void gradient_line(const problem &p, int64_t o, int64_t inner)
{
    typedef typename S::R R;
    const int64_t pace = S::template pace<G>(), first = S::template first<G>(), size = p.lines.size;
    const int64_t dy_from = o * p.a.outer + inner * p.a.inner, y_from = o * p.b.outer + inner * p.b.inner;
    const int64_t to = o * p.out.outer + inner * p.out.inner;
    S dy, y;
    double sum = 0;
    for (int64_t i = first; i < size; i += pace) {
        dy.template read<G>(p.a, dy_from, i, size);
        if (!p.is_log || size <= pace) y.template read<G>(p.b, y_from, i, size);
        sum += take<G>(dy, y, i, size, p.is_log);
    }
    R all = (R)tern__group_sum<G>(sum);
    for (int64_t i = first; i < size; i += pace) {
        if (size > pace) {
            dy.template read<G>(p.a, dy_from, i, size);
            y.template read<G>(p.b, y_from, i, size);
        }
#pragma unroll
        for (int n = 0; n < S::PIECES; n++) {
            int64_t at = i + n * G * S::LANES;
            R dx[S::LANES];
            if (at >= size) break;
#pragma unroll
            for (int l = 0; l < S::LANES; l++) {
                R d = dy.piece[n].get(l), of = y.piece[n].get(l);
                dx[l] = p.is_log ? d - exp(of) * all : of * (d - all);
            }
            S::put(p.out, to, at, dx, p.add);
        }
    }
}

template <int G, class S> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t o = tern__quotient(line, p.lines.inner);
        gradient_line<G, S>(p, o, line - o * p.lines.inner);
    }
}

static bool problem_of(const tern__call *call, bool is_log, problem *p)
{
    int64_t dim = ((const tern__dim_attr *)call->attr)->dim;
    *p = {};
    p->lines = tern__lines_of(call->out[0], dim);
    p->add = call->add[0];
    p->is_log = is_log;
    return tern__lined_of(call->in[0], dim, &p->a) &&
           (!call->in[1] || tern__lined_of(call->in[1], dim, &p->b)) &&
           tern__lined_of(call->out[0], dim, &p->out);
}

/* All have one dtype, in which is computed. */
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

static int start(const tern__call *call, bool is_log, bool is_gradient)
{
    problem p;
    if (!is_one_dtype(call) || !problem_of(call, is_log, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->out[0]) == 0) return TERN_OK;
    int group = tern__group_size(&p.lines, &p.a);
    bool bunched = tern__lined_bunched(&p.a, &p.lines) && tern__lined_bunched(&p.out, &p.lines) &&
                   (!is_gradient || tern__lined_bunched(&p.b, &p.lines));
    if (is_gradient) TERN__BUNCHED(p.a.dtype, bunched, start_gradient, call, p, group);
    TERN__BUNCHED(p.a.dtype, bunched, start_forward, call, p, group);
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
