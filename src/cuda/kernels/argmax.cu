/* argmax.cu - argmax and argmin along a dimension, and their gradient. */
#include "cuda/kernels/extremum.h"
#include "cuda/kernels.h"

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__lined x; /* x, or dx */
    const void *dy, *place;
    void *index, *value;
    int dy_dtype, place_dtype, index_dtype, value_dtype;
    bool least, add;
} problem;
} // namespace

static __device__ __forceinline__ int64_t line_start(const problem &p, int64_t line)
{
    return tern__lined_start(p.x, p.lines, line);
}

template <int G, class R> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) choose(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        tern__extremum<R> best = tern__group_extremum<G, R>(p.x, line_start(p, line), p.lines.size, p.least);
        if (threadIdx.x % G) continue;
        if (p.index) tern__element_set<int64_t>(p.index, p.index_dtype, line, best.place);
        if (p.value) tern__element_set<R>(p.value, p.value_dtype, line, best.value);
    }
}

template <int G, class R> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t from = line_start(p, line), chosen = tern__element<int64_t>(p.place, p.place_dtype, line);
        R d = tern__element<R>(p.dy, p.dy_dtype, line);
        for (int64_t i = threadIdx.x % G; i < p.lines.size; i += G)
            tern__lined_put<R>(p.x, from + i * p.x.step, i == chosen ? d : R(0), p.add);
    }
}

static bool problem_of(const tern__call *call, const tern__view *x, problem *p)
{
    int64_t dim = ((const tern__dim_attr *)call->attr)->dim;
    *p = {};
    p->lines = tern__lines_of(x, dim);
    p->add = call->add[0];
    return tern__lined_of(x, dim, &p->x);
}

static bool is_plain(const tern__view *view)
{
    return !view || tern__view_is_contiguous(view);
}

static int start(const tern__call *call, bool least)
{
    problem p;
    const tern__view *x = call->in[0], *index = call->out[0], *value = call->out[1];
    if (!problem_of(call, x, &p) || !is_plain(index) || !is_plain(value)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(x) == 0) return TERN_OK;
    p.least = least;
    p.index = index ? index->data : nullptr;
    p.index_dtype = index ? index->dtype : 0;
    p.value = value ? value->data : nullptr;
    p.value_dtype = value ? value->dtype : 0;
    int group = tern__group_size(&p.lines, &p.x);
    if (!tern__dtype_is_float(x->dtype)) return TERN__GROUPS_OF(call, p.lines, group, choose, int64_t, p);
    return x->dtype == TERN_F64 ? TERN__GROUPS_OF(call, p.lines, group, choose, double, p)
                                : TERN__GROUPS_OF(call, p.lines, group, choose, float, p);
}

int tern__cuda_argmax(const tern__call *call)
{
    return start(call, false);
}

int tern__cuda_argmin(const tern__call *call)
{
    return start(call, true);
}

int tern__cuda_choice_grad(const tern__call *call)
{
    problem p;
    const tern__view *dy = call->in[0], *place = call->in[1], *dx = call->out[0];
    if (!problem_of(call, dx, &p) || !is_plain(dy) || !is_plain(place)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(dx) == 0) return TERN_OK;
    if (tern__chosen_lines(&p.lines, place).size != 1) return TERN_E_UNSUPPORTED;
    p.dy = dy->data;
    p.dy_dtype = dy->dtype;
    p.place = place->data;
    p.place_dtype = place->dtype;
    int group = tern__group_size(&p.lines, &p.x);
    return dx->dtype == TERN_F64 ? TERN__GROUPS_OF(call, p.lines, group, gradient, double, p)
                                 : TERN__GROUPS_OF(call, p.lines, group, gradient, float, p);
}
