/* pointwise.cu - all pointwise kernels of pointwise.def on views of any dtype, stride and layout.
 *
 * The plan (kernels/plan.h) merges dimensions that all operands step through uniformly. If its rows are
 * then contiguous, or scalars, four elements are taken at a time; otherwise each thread computes its
 * element's offset in every operand. */
#include "cuda/copy.h"
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"

extern "C" {
#include "kernels/compute.h"
#include "kernels/plan.h"
#include "kernels/pointwise.h"
}

#define OPERANDS (TERN__POINTWISE_INS + 1) /* the output is the last */
#define OUT      TERN__POINTWISE_INS
#define THREADS  256

namespace
{
typedef struct walk {
    tern__plan plan;
    void *data[OPERANDS]; /* NULL: absent */
    int dtype[OPERANDS];
    double numbers[2];
    bool add, fours;
} walk;
} // namespace

template <class R> __device__ R number(double k)
{
    return (R)k;
}
template <> __device__ int64_t number<int64_t>(double k)
{
    return tern__nearest_integer(k);
}

/* ---- the formulas ---- */

#define P(ID, name, inputs, dtypes, expression)                                                              \
    struct ID {                                                                                              \
        enum { INS = inputs };                                                                               \
        template <class R> static __device__ R of(R a, R b, R c, R d, const R *k)                            \
        {                                                                                                    \
            (void)b, (void)c, (void)d, (void)k;                                                              \
            return (R)(expression);                                                                          \
        }                                                                                                    \
    };
namespace op
{
#include "kernels/pointwise.def"
}
#undef P

/* ---- the loops ---- */

template <class O, class R> __device__ R compute(const R v[4], const R k[2])
{
    return O::template of<R>(v[0], O::INS > 1 ? v[1] : R(0), O::INS > 2 ? v[2] : R(0),
                             O::INS > 3 ? v[3] : R(0), k);
}

template <class R> __device__ void store(const walk &w, int64_t at, R value)
{
    if (w.add) value += tern__element<R>(w.data[OUT], w.dtype[OUT], at);
    tern__element_set<R>(w.data[OUT], w.dtype[OUT], at, value);
}

template <class R>
static __device__ __forceinline__ void store_four(const walk &w, int64_t at, tern__four<R> values)
{
    if (w.add) {
        tern__four<R> before = tern__four_get<R>(w.data[OUT], w.dtype[OUT], at);
#pragma unroll
        for (int e = 0; e < 4; e++) values.v[e] += before.v[e];
    }
    tern__four_set<R>(w.data[OUT], w.dtype[OUT], at, values);
}

/* The offsets of an element in each operand. */
typedef struct place {
    int64_t at[OPERANDS];
} place;

template <class O> __device__ __forceinline__ place place_of(const walk &w, int64_t element)
{
    place p = {};
    for (int d = 0; d < w.plan.ndim; d++) {
        int64_t next = d + 1 < w.plan.ndim ? tern__quotient(element, w.plan.shape[d]) : 0;
        int64_t index = element - next * w.plan.shape[d];
        for (int o = 0; o < O::INS; o++) p.at[o] += index * w.plan.stride[o][d];
        p.at[OUT] += index * w.plan.stride[OUT][d];
        element = next;
    }
    return p;
}

/* Whether four neighbours of operand i can be read at once. */
static __device__ __forceinline__ bool is_whole(const walk &w, int i, int most)
{
    return w.plan.stride[i][0] != 0 && most == 4;
}

/* Returns four neighbours of operand i from what was read, or from the scalar that stands for all. */
template <class R>
__device__ __forceinline__ tern__four<R> get(const walk &w, int i, int64_t at, int most,
                                             const tern__read &read)
{
    bool is_scalar = w.plan.stride[i][0] == 0;
    if (is_whole(w, i, most)) return tern__four_of<R>(read, w.data[i], w.dtype[i], at);
    tern__four<R> f = {};
    R first = tern__element<R>(w.data[i], w.dtype[i], at);
#pragma unroll
    for (int e = 0; e < 4; e++)
        f.v[e] = is_scalar || e == 0 ? first : e < most ? tern__element<R>(w.data[i], w.dtype[i], at + e) : 0;
    return f;
}

/* The number of elements from `i` on, up to four: only a single row may end within a four. */
static __device__ __forceinline__ int most_at(const walk &w, int64_t i)
{
    return w.plan.count - i < 4 ? (int)(w.plan.count - i) : 4;
}

/* The loads of all operands, issued before any is used. */
typedef struct asked {
    place p;
    tern__read read[4];
} asked;

template <class O> static __device__ __forceinline__ asked ask(const walk &w, int64_t i)
{
    asked a = {};
    a.p = place_of<O>(w, i);
#pragma unroll
    for (int o = 0; o < O::INS; o++)
        if (is_whole(w, o, most_at(w, i))) a.read[o] = tern__four_read(w.data[o], w.dtype[o], a.p.at[o]);
    return a;
}

template <class O, class R>
static __device__ __forceinline__ void finish(const walk &w, int64_t i, const asked &a, const R k[2])
{
    const int most = most_at(w, i);
    tern__four<R> in[4] = {}, out = {};
#pragma unroll
    for (int o = 0; o < O::INS; o++) in[o] = get<R>(w, o, a.p.at[o], most, a.read[o]);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        R v[4] = {in[0].v[e], in[1].v[e], in[2].v[e], in[3].v[e]};
        out.v[e] = compute<O, R>(v, k);
    }
    if (most == 4) return store_four<R>(w, a.p.at[OUT], out);
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < most) store<R>(w, a.p.at[OUT] + e, out.v[e]);
}

/* Loads several fours at a time: in 16 bits one has only 8 bytes. */
template <class O, class R> __global__ void run_fours(walk w)
{
    tern__kernel_begin();
    constexpr int ahead = sizeof(R) > 4 ? 1 : O::INS > 1 ? 2 : 4;
    const R k[2] = {number<R>(w.numbers[0]), number<R>(w.numbers[1])};
    const int64_t step = (int64_t)gridDim.x * blockDim.x * 4;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < w.plan.count;
         i += ahead * step) {
        asked a[ahead] = {};
#pragma unroll
        for (int n = 0; n < ahead; n++)
            if (i + n * step < w.plan.count) a[n] = ask<O>(w, i + n * step);
#pragma unroll
        for (int n = 0; n < ahead; n++)
            if (i + n * step < w.plan.count) finish<O, R>(w, i + n * step, a[n], k);
    }
}

template <class O, class R> __global__ void run_places(walk w)
{
    tern__kernel_begin();
    const R k[2] = {number<R>(w.numbers[0]), number<R>(w.numbers[1])};
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.plan.count; i += step) {
        place p = place_of<O>(w, i);
        R v[4] = {};
        for (int o = 0; o < O::INS; o++) v[o] = tern__element<R>(w.data[o], w.dtype[o], p.at[o]);
        store<R>(w, p.at[OUT], compute<O, R>(v, k));
    }
}

/* ---- launching ---- */

template <class O, class R> static int start(const tern__call *call, const walk &w)
{
    if (!w.fours)
        return tern__cuda_launch(call, run_places<O, R>, tern__cuda_grid(call, w.plan.count, THREADS, 1),
                                 THREADS, 0, w);
    return tern__cuda_launch(call, run_fours<O, R>, tern__cuda_grid(call, w.plan.count, THREADS, 4), THREADS,
                             0, w);
}

template <class O> static int start_any(const tern__call *call, const walk &w, tern__compute compute)
{
    if (compute == TERN__COMPUTE_I64) return start<O, int64_t>(call, w);
    return compute == TERN__COMPUTE_F64 ? start<O, double>(call, w) : start<O, float>(call, w);
}

template <class O> static int start_float(const tern__call *call, const walk &w, tern__compute compute)
{
    if (compute == TERN__COMPUTE_I64) return TERN_E_UNSUPPORTED;
    return compute == TERN__COMPUTE_F64 ? start<O, double>(call, w) : start<O, float>(call, w);
}

/* Whether the rows of all operands are contiguous or scalars, and aligned for reading four at once. */
static bool takes_fours(const walk *w)
{
    const tern__plan *plan = &w->plan;
    bool fours = plan->stride[OUT][0] == 1 && (plan->ndim == 1 || plan->shape[0] % 4 == 0);
    for (int i = 0; i < OPERANDS && fours; i++) {
        if (!w->data[i] || (plan->stride[i][0] == 0 && i != OUT)) continue;
        fours = plan->stride[i][0] == 1 && tern__fours_fit(w->data[i], w->dtype[i]);
        for (int d = 1; d < plan->ndim; d++) fours &= plan->stride[i][d] % 4 == 0;
    }
    return fours;
}

int tern__cuda_pointwise(const tern__call *call)
{
    const tern__view *views[OPERANDS] = {call->in[0], call->in[1], call->in[2], call->in[3], call->out[0]};
    walk w = {};
    w.plan = tern__plan_of(views, OPERANDS);
    for (int i = 0; i < OPERANDS; i++) {
        w.data[i] = views[i] ? views[i]->data : nullptr;
        w.dtype[i] = views[i] ? views[i]->dtype : 0;
    }
    if (w.plan.count == 0) return TERN_OK;
    if (call->kernel == TERN__COPY) {
        int status = tern__cuda_move(call, call->in[0], call->out[0], call->add[0]);
        if (status != TERN_E_UNSUPPORTED) return status;
    }
    tern__pointwise_numbers(call, w.numbers);
    w.add = call->add[0];
    w.fours = takes_fours(&w);
    /* A copy is computed in its source's type and so rounded once. */
    bool is_copy = call->kernel == TERN__COPY && !call->add[0];
    tern__compute compute = tern__compute_of(views, is_copy ? OUT : OPERANDS);
    switch ((int)call->kernel) {
#define START_ANY(ID)   start_any<op::ID>(call, w, compute)
#define START_FLOAT(ID) start_float<op::ID>(call, w, compute)
#define P(ID, name, inputs, dtypes, expression)                                                              \
    case TERN__##ID:                                                                                         \
        return START_##dtypes(ID);
#include "kernels/pointwise.def"
#undef P
    }
    return TERN_E_UNSUPPORTED;
}

/* The plan handles all layouts. */
int tern__cuda_reorder(const tern__call *call)
{
    tern__call copy = *call;
    copy.kernel = TERN__COPY;
    copy.attr = nullptr;
    return tern__cuda_pointwise(&copy);
}
