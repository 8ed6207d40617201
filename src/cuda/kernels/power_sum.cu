/* power_sum.cu - the sum of |x|^p, or the maximum of |x|, of a tensor or of its sections. */
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/sections.h"
#include "kernels/norm_factors.h"
}

#define THREADS 256
#define LEAST   8192 /* least elements of a piece */
#define AHEAD   4    /* fours that a thread loads at a time */

namespace
{
typedef struct problem {
    const void *x;
    int dtype;
    const tern__section *table; /* NULL: one sum of all */
    int64_t sections, pieces, count, stride;
    double p, *partial, *sum;
    bool fours, add;
} problem;
} // namespace

static __device__ __forceinline__ double power(double x, double p)
{
    return p == 2 ? x * x : p == 1 ? fabs(x) : pow(fabs(x), p);
}

template <class J> static __device__ __forceinline__ double term(double x, double p)
{
    if constexpr (std::is_same<J, tern__high>::value)
        return fabs(x);
    else
        return power(x, p);
}

static __device__ __forceinline__ void put(const problem &p, int64_t n, double value)
{
    double *sum = p.sum + n * p.stride;
    *sum = value + (p.add ? *sum : 0);
}

/* The part of thread `first` of `step` of `count` elements. tern__high finds the maximum for p = infinity;
 * no |x| is below 0. */
template <class J>
static __device__ __forceinline__ double stretch(const problem &p, int64_t begin, int64_t count,
                                                 int64_t first, int64_t step)
{
    double sum = 0;
    int64_t fours = p.fours ? count / 4 : 0;
    for (int64_t i = first; i < fours; i += AHEAD * step) {
        tern__read read[AHEAD] = {};
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (i + n * step < fours) read[n] = tern__four_read(p.x, p.dtype, begin + (i + n * step) * 4);
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (i + n * step >= fours) break;
            tern__four<double> f = tern__four_of<double>(read[n], p.x, p.dtype, begin + (i + n * step) * 4);
            for (int e = 0; e < 4; e++) sum = J::of(sum, term<J>(f.v[e], p.p));
        }
    }
    for (int64_t i = fours * 4 + first; i < count; i += step)
        sum = J::of(sum, term<J>(tern__element<double>(p.x, p.dtype, begin + i), p.p));
    return sum;
}

template <class J> static __global__ void run(problem p)
{
    tern__kernel_begin();
    double sum =
        stretch<J>(p, 0, p.count, (int64_t)blockIdx.x * THREADS + threadIdx.x, (int64_t)p.pieces * THREADS);
    sum = tern__block_join<J>(sum, 0.0);
    if (threadIdx.x) return;
    if (p.pieces > 1)
        p.partial[blockIdx.x] = sum;
    else
        put(p, 0, sum);
}

/* A warp takes a section. */
template <class J> static __global__ void run_apart(problem p)
{
    tern__kernel_begin();
    int64_t warps = THREADS / TERN__WARP, own = blockIdx.x * warps + threadIdx.x / TERN__WARP;
    int lane = (int)threadIdx.x % TERN__WARP;
    for (int64_t n = own; n < p.sections; n += gridDim.x * warps) {
        tern__section section = tern__section_get(p.table, n, 0);
        double sum = tern__warp_join<J>(stretch<J>(p, section.begin, section.count, lane, TERN__WARP));
        if (lane == 0) put(p, n, sum);
    }
}

template <class J> static __global__ void close(problem p)
{
    tern__kernel_begin();
    double sum = tern__pieces_join<J>(p.partial, p.pieces, 1, 0.0);
    if (threadIdx.x == 0) put(p, 0, sum);
}

template <class J> static int start(const tern__call *call, problem *p)
{
    if (p->pieces > 1) p->partial = (double *)tern__cuda_scratch(call, (size_t)p->pieces * sizeof(double));
    if (p->pieces > 1 && !p->partial) return TERN_E_MEMORY;
    int status = tern__cuda_launch(call, run<J>, (unsigned)p->pieces, THREADS, 0, *p);
    if (!status && p->pieces > 1) status = tern__cuda_launch(call, close<J>, 1, TERN__WARP, 0, *p);
    tern__cuda_scratch_free(call, p->partial);
    return status;
}

template <class J> static int start_apart(const tern__call *call, problem *p)
{
    if (p->sections == 0) return TERN_OK;
    return tern__cuda_launch(call, run_apart<J>, tern__cuda_grid(call, p->sections, THREADS / TERN__WARP, 1),
                             THREADS, 0, *p);
}

template <class J> static int start_either(const tern__call *call, problem *p)
{
    return p->table ? start_apart<J>(call, p) : start<J>(call, p);
}

int tern__cuda_power_sum(const tern__call *call)
{
    const tern__view *x = call->in[0], *sum = call->out[0];
    if (!tern__view_is_dense(x) || !tern__dtype_is_float(x->dtype)) return TERN_E_UNSUPPORTED;
    problem p = {};
    p.x = x->data;
    p.dtype = x->dtype;
    p.table = tern__section_table(call->in[1]);
    p.sections = tern__section_count(call->in[1]);
    p.count = tern__view_count(x);
    p.pieces = tern__sum_pieces(p.count, LEAST);
    p.p = ((const tern__power_attr *)call->attr)->p;
    p.sum = (double *)sum->data;
    p.stride = sum->ndim ? sum->stride[0] : 0;
    p.add = call->add[0];
    p.fours = tern__fours_fit(p.x, x->dtype);
    return p.p == (double)INFINITY ? start_either<tern__high>(call, &p) : start_either<tern__add>(call, &p);
}
