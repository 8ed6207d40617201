/* optim.cu - optimizers in one pass over memory: each element of gradient, parameter and state is read
 * once and written once, in place, four neighbours at a time.
 *
 * The usual dtypes, with parameter and states in the type of the computation, have kernels of their own;
 * the gradient and the parameter's copy may have any dtype. */
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/optim.h"
#include "kernels/sections.h"
}

#include <math.h>

#define THREADS 256
#define STATES  3
#define ANY     (-1) /* parameter and states have any dtypes */

enum { GRADIENT, PARAMETER, STATE, COPY = STATE + STATES, OPERANDS };

typedef struct optim_walk {
    void *data[OPERANDS]; /* NULL: absent */
    int dtype[OPERANDS];
    int64_t count;
    bool fours;                             /* all are aligned for reading four at once */
    const double *factors, *skip, *skipped; /* numbers that the host does not know; NULL: none */
    bool rows;                              /* factors per section */
    const tern__section *table;             /* NULL: all is one section                     */
    int64_t sections;
} optim_walk;

/* ---- the formulas ---- */

template <class R> struct common {
    R lr, scale, decay;
    __device__ R gradient(R g, R p) const
    {
        return scale * g + decay * p;
    }
    __device__ void multiply(const double *factors)
    {
        lr *= (R)factors[0];
        scale *= (R)factors[1];
        decay *= (R)factors[2];
    }
};

template <class R> static __host__ __device__ common<R> common_of(const tern__step_attr &a)
{
    return {(R)a.lr, (R)a.scale, (R)a.decay};
}

template <class R> struct sgd {
    enum { READS_GRADIENT = 1, STATES_WRITTEN = 1 };
    common<R> step;
    R momentum, take;
    bool moves, first, nesterov;

    typedef tern__sgd_attr attributes;
    static __host__ __device__ sgd of(const attributes &a, const optim_walk &w)
    {
        return {common_of<R>(a.step),     (R)a.momentum,     (R)(1 - a.dampening),
                w.data[STATE] != nullptr, a.step.count == 1, a.nesterov != 0};
    }
    __device__ void multiply(const double *factors)
    {
        step.multiply(factors);
    }
    __device__ void go_on(R g, R &p, R *s) const
    {
        R d = step.gradient(g, p);
        s[0] = first ? d : momentum * s[0] + take * d;
        R moving = nesterov ? d + momentum * s[0] : s[0];
        p -= step.lr * (moves ? moving : d);
    }
};

template <class R> struct adam {
    enum { READS_GRADIENT = 1, STATES_WRITTEN = 3 };
    common<R> step;
    R keep, beta1, rest1, beta2, rest2, eps, rate, unbias;
    bool amsgrad;

    typedef tern__adam_attr attributes;
    static __host__ __device__ adam of(const attributes &a, const optim_walk &w)
    {
        double rate = a.step.lr / (1 - pow(a.beta1, a.step.count));
        double unbias = 1 / sqrt(1 - pow(a.beta2, a.step.count));
        return {common_of<R>(a.step), (R)a.keep, (R)a.beta1, (R)(1 - a.beta1), (R)a.beta2,
                (R)(1 - a.beta2),     (R)a.eps,  (R)rate,    (R)unbias,        w.data[STATE + 2] != nullptr};
    }
    __device__ void multiply(const double *factors)
    {
        step.multiply(factors);
        rate *= (R)factors[0];
    }
    __device__ void go_on(R g, R &p, R *s) const
    {
        R d = step.gradient(g, p);
        s[0] = beta1 * s[0] + rest1 * d;
        s[1] = beta2 * s[1] + rest2 * d * d;
        s[2] = s[2] >= s[1] || s[2] != s[2] ? s[2] : s[1]; /* a NaN stays */
        p = keep * p - rate * s[0] / (unbias * sqrt(amsgrad ? s[2] : s[1]) + eps);
    }
};

template <class R> struct rmsprop {
    enum { READS_GRADIENT = 1, STATES_WRITTEN = 3 };
    common<R> step;
    R alpha, rest, eps, momentum;
    bool moves, centred;

    typedef tern__rmsprop_attr attributes;
    static __host__ __device__ rmsprop of(const attributes &a, const optim_walk &w)
    {
        return {common_of<R>(a.step),
                (R)a.alpha,
                (R)(1 - a.alpha),
                (R)a.eps,
                (R)a.momentum,
                w.data[STATE + 1] != nullptr,
                w.data[STATE + 2] != nullptr};
    }
    __device__ void multiply(const double *factors)
    {
        step.multiply(factors);
    }
    __device__ void go_on(R g, R &p, R *s) const
    {
        R d = step.gradient(g, p);
        s[0] = alpha * s[0] + rest * d * d;
        s[2] = alpha * s[2] + rest * d;
        R spread = centred ? s[0] - s[2] * s[2] : s[0];
        R u = d / (sqrt(spread < 0 ? 0 : spread) + eps); /* below 0 by rounding, after equal gradients */
        s[1] = momentum * s[1] + u;
        p -= step.lr * (moves ? s[1] : u);
    }
};

template <class R> struct adagrad {
    enum { READS_GRADIENT = 1, STATES_WRITTEN = 1 };
    common<R> step;
    R rate, eps, start;
    bool first;

    typedef tern__adagrad_attr attributes;
    static __host__ __device__ adagrad of(const attributes &a, const optim_walk &)
    {
        return {common_of<R>(a.step), (R)tern__adagrad_rate(&a), (R)a.eps, (R)a.start, a.step.count == 1};
    }
    __device__ void multiply(const double *factors)
    {
        step.multiply(factors);
        rate *= (R)factors[0];
    }
    __device__ void go_on(R g, R &p, R *s) const
    {
        R d = step.gradient(g, p);
        s[0] = (first ? start : s[0]) + d * d;
        p -= rate * (d / (sqrt(s[0]) + eps));
    }
};

template <class R> struct lamb {
    enum { READS_GRADIENT = 0, STATES_WRITTEN = 0 };
    common<R> step;
    R beta1, take, beta2, rest2, unbias1, unbias2, eps, pull;

    typedef tern__lamb_attr attributes;
    static __host__ __device__ lamb of(const attributes &a, const optim_walk &)
    {
        return {common_of<R>(a.step),
                (R)a.beta1,
                (R)a.take,
                (R)a.beta2,
                (R)(1 - a.beta2),
                (R)tern__lamb_unbias1(&a),
                (R)tern__lamb_unbias2(&a),
                (R)a.eps,
                (R)a.pull};
    }
    __device__ void multiply(const double *factors)
    {
        step.multiply(factors);
    }
    __device__ R update(R p, const R *s) const
    {
        return unbias1 * s[0] / (unbias2 * sqrt(s[1]) + eps) + pull * p;
    }
    __device__ void go_on(R, R &p, R *s) const
    {
        p -= step.lr * update(p, s);
    }
    __device__ void move(R g, R p, R *s) const
    {
        R d = step.gradient(g, p);
        s[0] = beta1 * s[0] + take * d;
        s[1] = beta2 * s[1] + rest2 * d * d;
    }
};

/* ---- the loops: those over four elements are unrolled, so that the elements stay in registers ---- */

template <class R>
static __device__ __forceinline__ tern__four<R> get(const optim_walk &w, int i, int dtype, int64_t at,
                                                    int most)
{
    if (w.fours && most == 4) return tern__four_get<R>(w.data[i], dtype, at);
    tern__four<R> f = {};
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < most) f.v[e] = tern__element<R>(w.data[i], dtype, at + e);
    return f;
}

template <class R>
static __device__ __forceinline__ void put(const optim_walk &w, int i, int dtype, int64_t at, int most,
                                           const tern__four<R> &f)
{
    if (w.fours && most == 4) return tern__four_set<R>(w.data[i], dtype, at, f);
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < most) tern__element_set<R>(w.data[i], dtype, at + e, f.v[e]);
}

/* Four elements of parameter, states and gradient. */
template <class R> struct optim_stretch {
    tern__four<R> p, g, s[STATES];
};

/* Loads the states first: they are most, and have a fixed dtype. */
template <class R, int DTYPE>
static __device__ __forceinline__ optim_stretch<R> load(const optim_walk &w, int64_t at, int most,
                                                        bool gradient)
{
    optim_stretch<R> t = {};
    t.p = get<R>(w, PARAMETER, DTYPE == ANY ? w.dtype[PARAMETER] : DTYPE, at, most);
    for (int i = 0; i < STATES; i++)
        if (w.data[STATE + i])
            t.s[i] = get<R>(w, STATE + i, DTYPE == ANY ? w.dtype[STATE + i] : DTYPE, at, most);
    if (gradient) t.g = get<R>(w, GRADIENT, w.dtype[GRADIENT], at, most);
    return t;
}

template <class R, int DTYPE>
static __device__ __forceinline__ void store_states(const optim_walk &w, int64_t at, int most,
                                                    const optim_stretch<R> &t, int states)
{
    for (int i = 0; i < STATES; i++)
        if (i < states && w.data[STATE + i])
            put<R>(w, STATE + i, DTYPE == ANY ? w.dtype[STATE + i] : DTYPE, at, most, t.s[i]);
}

/* Adds what the host does not know about the call; one thread of each block computes the powers of a
 * count. False: nothing changes. */
template <class O>
static __device__ __forceinline__ bool settle(const optim_walk &w, typename O::attributes attr, O *o)
{
    __shared__ O own;
    if (w.skip && *w.skip != 0) return false;
    if (w.skipped) {
        if (threadIdx.x == 0) {
            tern__step_settle(&attr.step, nullptr, w.skipped);
            own = O::of(attr, w);
        }
        __syncthreads();
        *o = own;
    }
    if (w.factors && !w.rows) o->multiply(w.factors);
    return true;
}

/* Updates four elements at `begin` and at every multiple of `pace` after it. */
template <class O, class R, int DTYPE>
static __device__ __forceinline__ void go_over(const optim_walk &w, const O &o, int64_t begin, int64_t end,
                                               int64_t pace)
{
    for (int64_t at = begin; at < end; at += pace) {
        int most = end - at < 4 ? (int)(end - at) : 4;
        optim_stretch<R> t = load<R, DTYPE>(w, at, most, O::READS_GRADIENT);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            R s[STATES] = {t.s[0].v[e], t.s[1].v[e], t.s[2].v[e]};
            o.go_on(t.g.v[e], t.p.v[e], s);
            for (int i = 0; i < STATES; i++) t.s[i].v[e] = s[i];
        }
        store_states<R, DTYPE>(w, at, most, t, O::STATES_WRITTEN);
        put<R>(w, PARAMETER, DTYPE == ANY ? w.dtype[PARAMETER] : DTYPE, at, most, t.p);
        if (w.data[COPY]) put<R>(w, COPY, w.dtype[COPY], at, most, t.p);
    }
}

template <class O, class R, int DTYPE>
static __global__ void run_step(optim_walk w, typename O::attributes attr, O o)
{
    tern__kernel_begin();
    if (!settle(w, attr, &o)) return;
    int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    go_over<O, R, DTYPE>(w, o, first, w.count, (int64_t)gridDim.x * blockDim.x * 4);
}

/* A block takes one section at a time. */
template <class O, class R, int DTYPE>
static __global__ void run_sections(optim_walk w, typename O::attributes attr, O o)
{
    tern__kernel_begin();
    if (!settle(w, attr, &o)) return;
    for (int64_t n = blockIdx.x; n < w.sections; n += gridDim.x) {
        tern__section section = tern__section_get(w.table, n, 0);
        O own = o;
        if (w.rows) own.multiply(w.factors + 3 * section.row);
        go_over<O, R, DTYPE>(w, own, section.begin + threadIdx.x * 4, section.begin + section.count,
                             (int64_t)blockDim.x * 4);
    }
}

/* ---- launching ---- */

static const tern__view *operand(const tern__call *call, int i)
{
    return i == GRADIENT ? call->in[0] : call->out[i - PARAMETER];
}

static bool all_are(const optim_walk *w, int first, int last, int dtype)
{
    bool fine = true;
    for (int i = first; i <= last; i++) fine &= !w->data[i] || w->dtype[i] == dtype;
    return fine;
}

static const double *number_of(const tern__call *call, int in)
{
    return call->in[in] ? (const double *)call->in[in]->data : nullptr;
}

/* Fills in the numbers that the host does not know, and the sections. */
static void walk_by(const tern__call *call, optim_walk *w)
{
    const tern__view *factors = call->in[TERN__OPTIM_FACTORS], *sections = call->in[TERN__OPTIM_SECTIONS];
    w->factors = number_of(call, TERN__OPTIM_FACTORS);
    w->skip = number_of(call, TERN__OPTIM_SKIP);
    w->skipped = number_of(call, TERN__OPTIM_SKIPPED);
    w->rows = factors && factors->ndim == 2;
    w->table = tern__section_table(sections);
    w->sections = tern__section_count(sections);
}

/* Fills in the operands, which must be contiguous; a copy requires an f32 master. */
static bool walk_of(const tern__call *call, int operands, optim_walk *w)
{
    bool fine = true;
    *w = {};
    w->count = tern__view_count(call->out[0]);
    w->fours = true;
    walk_by(call, w);
    for (int i = 0; i < operands; i++) {
        const tern__view *view = operand(call, i);
        if (!view) continue;
        w->data[i] = view->data;
        w->dtype[i] = view->dtype;
        w->fours &= tern__fours_fit(view->data, view->dtype);
        fine &= tern__dtype_is_float(view->dtype) && tern__view_is_contiguous(view);
    }
    return fine && (!w->data[COPY] || w->dtype[PARAMETER] == TERN_F32);
}

template <class O> static const typename O::attributes &attributes_of(const tern__call *call)
{
    return *(const typename O::attributes *)call->attr;
}

template <class O, class R, int DTYPE> static int start(const tern__call *call, const optim_walk &w)
{
    const typename O::attributes &attr = attributes_of<O>(call);
    return w.table
               ? tern__cuda_launch(call, run_sections<O, R, DTYPE>, tern__cuda_grid(call, w.sections, 1, 1),
                                   THREADS, 0, w, attr, O::of(attr, w))
               : tern__cuda_launch(call, run_step<O, R, DTYPE>, tern__cuda_grid(call, w.count, THREADS, 4),
                                   THREADS, 0, w, attr, O::of(attr, w));
}

template <template <class> class O> static int run(const tern__call *call)
{
    optim_walk w;
    if (!walk_of(call, OPERANDS, &w)) return TERN_E_UNSUPPORTED;
    if (w.count == 0 || w.sections == 0) return TERN_OK;
    bool wide = false;
    for (int i = 0; i < OPERANDS; i++) wide |= w.data[i] && w.dtype[i] == TERN_F64;
    if (all_are(&w, PARAMETER, COPY - 1, TERN_F32) && !wide) return start<O<float>, float, TERN_F32>(call, w);
    return wide ? start<O<double>, double, ANY>(call, w) : start<O<float>, float, ANY>(call, w);
}

int tern__cuda_sgd(const tern__call *call)
{
    return run<sgd>(call);
}

int tern__cuda_adam(const tern__call *call)
{
    return run<adam>(call);
}

int tern__cuda_rmsprop(const tern__call *call)
{
    return run<rmsprop>(call);
}

int tern__cuda_adagrad(const tern__call *call)
{
    return run<adagrad>(call);
}

int tern__cuda_lamb(const tern__call *call)
{
    return run<lamb>(call);
}

/* ---- LAMB's moments, and the norms of its sections ---- */

/* A warp takes a section; its sums, of p^2 and of update^2, are in double. */
template <class R, int DTYPE>
static __global__ void run_moments(optim_walk w, tern__lamb_attr attr, lamb<R> o, double *sums)
{
    tern__kernel_begin();
    if (!settle(w, attr, &o)) return;
    int lane = (int)threadIdx.x % TERN__WARP;
    int64_t warps = THREADS / TERN__WARP, own = blockIdx.x * warps + threadIdx.x / TERN__WARP;
    for (int64_t n = own; n < w.sections; n += gridDim.x * warps) {
        tern__section section = tern__section_get(w.table, n, w.count);
        int64_t next = section.begin + section.count;
        double pp = 0, uu = 0;
        for (int64_t at = section.begin + lane * 4; at < next; at += TERN__WARP * 4) {
            int most = next - at < 4 ? (int)(next - at) : 4;
            optim_stretch<R> t = load<R, DTYPE>(w, at, most, true);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                R p = t.p.v[e], s[2] = {t.s[0].v[e], t.s[1].v[e]};
                o.move(t.g.v[e], p, s);
                R u = o.update(p, s);
                t.s[0].v[e] = s[0];
                t.s[1].v[e] = s[1];
                pp += e < most ? (double)p * (double)p : 0;
                uu += e < most ? (double)u * (double)u : 0;
            }
            store_states<R, DTYPE>(w, at, most, t, 2);
        }
        pp = tern__warp_sum(pp);
        uu = tern__warp_sum(uu);
        if (lane == 0) sums[2 * n] = pp;
        if (lane == 0) sums[2 * n + 1] = uu;
    }
}

template <class R, int DTYPE> static int start_moments(const tern__call *call, const optim_walk &w)
{
    return tern__cuda_launch(call, run_moments<R, DTYPE>,
                             tern__cuda_grid(call, w.sections, THREADS / TERN__WARP, 1), THREADS, 0, w,
                             attributes_of<lamb<R>>(call), lamb<R>::of(attributes_of<lamb<R>>(call), w),
                             (double *)call->out[3]->data);
}

/* Parameter and moments are f32 or f64; the gradient may have 16 bits. */
int tern__cuda_lamb_moments(const tern__call *call)
{
    optim_walk w;
    if (!walk_of(call, STATE + 2, &w) || !tern__view_is_contiguous(call->out[3])) return TERN_E_UNSUPPORTED;
    if (w.sections == 0) return TERN_OK;
    if (all_are(&w, PARAMETER, STATE + 1, TERN_F64)) return start_moments<double, TERN_F64>(call, w);
    bool fine = all_are(&w, PARAMETER, STATE + 1, TERN_F32) && w.dtype[GRADIENT] != TERN_F64;
    return fine ? start_moments<float, TERN_F32>(call, w) : TERN_E_UNSUPPORTED;
}
