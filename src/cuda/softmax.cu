/* softmax.cu - softmax and its logarithm along one dimension, and their gradients, which may be written over
 * dy. A line of them is gone through twice, the second time in a cache. */
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

template <int G, class R> static __global__ void forward(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t o = tern__quotient(line, p.lines.inner), n = line - o * p.lines.inner;
        int64_t from = o * p.a.outer + n * p.a.inner, to = o * p.out.outer + n * p.out.inner;
        tern__softmax_line<G, R>(p.a, from, p.out, to, p.lines.size, p.is_log, p.add);
    }
}

template <int G, class R> static __global__ void gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t o = tern__quotient(line, p.lines.inner), n = line - o * p.lines.inner;
        int64_t dy = o * p.a.outer + n * p.a.inner, y = o * p.b.outer + n * p.b.inner;
        int64_t to = o * p.out.outer + n * p.out.inner;
        double sum = 0;
        for (int64_t i = threadIdx.x % G; i < p.lines.size; i += G) {
            R d = tern__lined_get<R>(p.a, dy + i * p.a.step);
            sum += (double)(p.is_log ? d : d * tern__lined_get<R>(p.b, y + i * p.b.step));
        }
        R all = (R)tern__group_sum<G>(sum);
        for (int64_t i = threadIdx.x % G; i < p.lines.size; i += G) {
            R d = tern__lined_get<R>(p.a, dy + i * p.a.step), of = tern__lined_get<R>(p.b, y + i * p.b.step);
            R slope = p.is_log ? d - exp(of) * all : of * (d - all);
            tern__lined_put<R>(p.out, to + i * p.out.step, slope, p.add);
        }
    }
}

static bool problem_of(const tern__call *call, bool is_log, problem *p)
{
    int64_t dim = ((const tern__dim_attr *)call->attr)->dim;
    *p = {};
    p->lines = tern__lines_of(call->out[0], dim);
    p->add = call->add[0];
    p->is_log = is_log;
    return tern__dtype_is_float(call->out[0]->dtype) && tern__lined_of(call->in[0], dim, &p->a) &&
           (!call->in[1] || tern__lined_of(call->in[1], dim, &p->b)) &&
           tern__lined_of(call->out[0], dim, &p->out);
}

static int start(const tern__call *call, bool is_log, bool is_gradient)
{
    problem p;
    if (!problem_of(call, is_log, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->out[0]) == 0) return TERN_OK;
    bool is_wide = call->out[0]->dtype == TERN_F64;
    int group = tern__group_size(&p.lines, &p.a);
    if (is_gradient)
        return is_wide ? TERN__GROUPS_OF(call, p.lines, group, gradient, double, p)
                       : TERN__GROUPS_OF(call, p.lines, group, gradient, float, p);
    return is_wide ? TERN__GROUPS_OF(call, p.lines, group, forward, double, p)
                   : TERN__GROUPS_OF(call, p.lines, group, forward, float, p);
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
