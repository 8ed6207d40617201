/* pointwise.cu - all pointwise kernels of pointwise.def on views of any dtype, stride and layout.
 *
 * The plan (kernels/plan.h) merges dimensions that all operands step through uniformly. If its rows are
 * then contiguous, or scalars, a thread takes 16 bytes at a time where all operands have one dtype, and
 * four elements where they have several; otherwise it computes its element's offset in every operand. */
#include "cuda/copy.h"
#include "cuda/kernels/bunches.h"
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
    bool add, bunches, fours;
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

/* Returns the bunch at an offset of operand o, or the scalar that stands for all of it. */
template <int DTYPE, int N>
static __device__ __forceinline__ tern__bunch<DTYPE, N> bunch_at(const walk &w, int o, int64_t at)
{
    if (w.plan.stride[o][0] != 0) return tern__bunch_get<DTYPE, N>(w.data[o], at);
    const tern__number<DTYPE> all = tern__bunch_get<DTYPE, 1>(w.data[o], at).get(0);
    tern__bunch<DTYPE, N> bunch = {};
#pragma unroll
    for (int l = 0; l < N; l++) bunch.put(l, all);
    return bunch;
}

template <class O, int FROM, int TO, int N>
static __device__ __forceinline__ void finish_bunch(const walk &w, int64_t at, const tern__bunch<FROM, N> *in,
                                                    const float k[2])
{
    float out[N];
#pragma unroll
    for (int l = 0; l < N; l++) {
        float v[4] = {};
#pragma unroll
        for (int o = 0; o < O::INS; o++) v[o] = in[o].get(l);
        out[l] = compute<O, float>(v, k);
    }
    tern__bunch_put<TO>(w.data[OUT], at, out, w.add);
}

/* A thread asks for 32 bytes of one operand at a time, or for 16 of each of several. */
template <class O, int FROM, int TO, int N> static __global__ void run_bunches(walk w)
{
    tern__kernel_begin();
    constexpr int ahead = O::INS > 1 ? 1 : 32 / (int)sizeof(tern__bunch<FROM, N>);
    const float k[2] = {(float)w.numbers[0], (float)w.numbers[1]};
    const int64_t step = (int64_t)gridDim.x * blockDim.x * N;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < w.plan.count;
         i += ahead * step) {
        tern__bunch<FROM, N> in[ahead][O::INS];
        int64_t at[ahead];
#pragma unroll
        for (int n = 0; n < ahead; n++) {
            if (i + n * step >= w.plan.count) break;
            const place p = place_of<O>(w, i + n * step);
            at[n] = p.at[OUT];
#pragma unroll
            for (int o = 0; o < O::INS; o++) in[n][o] = bunch_at<FROM, N>(w, o, p.at[o]);
        }
#pragma unroll
        for (int n = 0; n < ahead; n++)
            if (i + n * step < w.plan.count) finish_bunch<O, FROM, TO, N>(w, at[n], in[n], k);
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

/* Whether the rows of all operands are contiguous or scalars, and aligned for reading so many at once. */
static bool rows_fit(const walk *w, int64_t lanes)
{
    const tern__plan *plan = &w->plan;
    bool fit = plan->stride[OUT][0] == 1;
    for (int i = 0; i < OPERANDS && fit; i++) {
        if (!w->data[i] || (plan->stride[i][0] == 0 && i != OUT)) continue;
        fit = plan->stride[i][0] == 1 && tern__lanes_fit(w->data[i], w->dtype[i], lanes);
        for (int d = 1; d < plan->ndim; d++) fit &= plan->stride[i][d] % lanes == 0;
    }
    return fit;
}

static bool is_half(int dtype)
{
    return tern__dtype_is_half((tern_dtype)dtype);
}

static bool takes_bunches(const walk *w)
{
    const int dtype = w->dtype[OUT], lanes = tern__bunch_most(dtype);
    bool is_one = dtype == TERN_F32 || is_half(dtype);
    for (int i = 0; i < OUT; i++) is_one &= !w->data[i] || w->dtype[i] == dtype;
    return is_one && w->plan.shape[0] % lanes == 0 && rows_fit(w, lanes);
}

static bool takes_fours(const walk *w)
{
    return (w->plan.ndim == 1 || w->plan.shape[0] % 4 == 0) && rows_fit(w, 4);
}

/* Copies between f32 and a 16-bit type. */
static bool takes_cast(const walk *w)
{
    const int from = w->dtype[0], to = w->dtype[OUT];
    return ((from == TERN_F32 && is_half(to)) || (is_half(from) && to == TERN_F32)) &&
           w->plan.stride[0][0] == 1 && w->plan.shape[0] % 4 == 0 && rows_fit(w, 4);
}

template <class O, class R> static int start(const tern__call *call, const walk &w)
{
    if (!w.fours)
        return tern__cuda_launch(call, run_places<O, R>, tern__cuda_grid(call, w.plan.count, THREADS, 1),
                                 THREADS, 0, w);
    return tern__cuda_launch(call, run_fours<O, R>, tern__cuda_grid(call, w.plan.count, THREADS, 4), THREADS,
                             0, w);
}

template <class O, int FROM, int TO, int N> static int start_bunches(const tern__call *call, const walk &w)
{
    return tern__cuda_launch(call, run_bunches<O, FROM, TO, N>,
                             tern__cuda_grid(call, w.plan.count, THREADS, N), THREADS, 0, w);
}

template <class O> static int start_f32(const tern__call *call, const walk &w)
{
    if (!w.bunches) return start<O, float>(call, w);
    switch (w.dtype[OUT]) {
    case TERN_BF16: return start_bunches<O, TERN_BF16, TERN_BF16, 8>(call, w);
    case TERN_F16: return start_bunches<O, TERN_F16, TERN_F16, 8>(call, w);
    default: return start_bunches<O, TERN_F32, TERN_F32, 4>(call, w);
    }
}

template <class O> static int start_any(const tern__call *call, const walk &w, tern__compute compute)
{
    if (compute == TERN__COMPUTE_I64) return start<O, int64_t>(call, w);
    return compute == TERN__COMPUTE_F64 ? start<O, double>(call, w) : start_f32<O>(call, w);
}

template <class O> static int start_float(const tern__call *call, const walk &w, tern__compute compute)
{
    if (compute == TERN__COMPUTE_I64) return TERN_E_UNSUPPORTED;
    return compute == TERN__COMPUTE_F64 ? start<O, double>(call, w) : start_f32<O>(call, w);
}

static int start_cast(const tern__call *call, const walk &w)
{
    if (w.dtype[0] == TERN_BF16) return start_bunches<op::COPY, TERN_BF16, TERN_F32, 4>(call, w);
    if (w.dtype[0] == TERN_F16) return start_bunches<op::COPY, TERN_F16, TERN_F32, 4>(call, w);
    return w.dtype[OUT] == TERN_BF16 ? start_bunches<op::COPY, TERN_F32, TERN_BF16, 4>(call, w)
                                     : start_bunches<op::COPY, TERN_F32, TERN_F16, 4>(call, w);
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
    if (call->kernel == TERN__COPY && takes_cast(&w)) return start_cast(call, w);
    w.bunches = takes_bunches(&w);
    w.fours = !w.bunches && takes_fours(&w);
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
