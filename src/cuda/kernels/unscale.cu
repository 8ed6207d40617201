/* unscale.cu - multiplies a gradient by a factor and counts its non-finite elements. */
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/loss_scale.h"
}

#define THREADS 256
#define LEAST   8192 /* least elements of a piece */
#define AHEAD   4    /* fours that a thread loads at a time */

namespace
{
typedef struct problem {
    const void *g;
    void *out;
    int g_dtype, out_dtype, pieces;
    int64_t count;
    double factor, *partial, *bad; /* bad NULL: not wanted */
    const double *by, *drop;       /* numbers that the host does not know; NULL: none */
    bool fours, add;
} problem;
} // namespace

static __device__ __forceinline__ void put(const problem &p, double bad)
{
    *p.bad = bad + (p.add ? *p.bad : 0);
}

/* Returns 1 if the value is not finite. */
static __device__ __forceinline__ int change(double factor, bool drop, double *value)
{
    if (drop) *value = 0;
    int bad = !(fabs(*value) <= 1.7976931348623157e308);
    *value *= factor;
    return bad;
}

static __global__ void run(problem p)
{
    tern__kernel_begin();
    int bad = 0;
    double factor = p.factor * (p.by ? *p.by : 1);
    bool drop = p.drop && *p.drop != 0;
    if (factor == 1 && !drop && !p.bad && p.out == p.g) return; /* nothing changes */
    int64_t step = (int64_t)p.pieces * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t fours = p.fours ? p.count / 4 : 0;
    for (int64_t i = first; i < fours; i += AHEAD * step) {
        tern__read read[AHEAD] = {};
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (i + n * step < fours) read[n] = tern__four_read(p.g, p.g_dtype, (i + n * step) * 4);
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (i + n * step >= fours) break;
            tern__four<double> f = tern__four_of<double>(read[n], p.g, p.g_dtype, (i + n * step) * 4);
            for (int e = 0; e < 4; e++) bad += change(factor, drop, &f.v[e]);
            if (p.out) tern__four_set<double>(p.out, p.out_dtype, (i + n * step) * 4, f);
        }
    }
    for (int64_t i = fours * 4 + first; i < p.count; i += step) {
        double value = tern__element<double>(p.g, p.g_dtype, i);
        bad += change(factor, drop, &value);
        if (p.out) tern__element_set<double>(p.out, p.out_dtype, i, value);
    }
    if (!p.bad) return;
    double all = tern__block_sum((double)bad);
    if (threadIdx.x) return;
    if (p.pieces > 1)
        p.partial[blockIdx.x] = all;
    else
        put(p, all);
}

static __global__ void close(problem p)
{
    tern__kernel_begin();
    double bad = tern__pieces_join<tern__add>(p.partial, p.pieces, 1, 0.0);
    if (threadIdx.x == 0) put(p, bad);
}

static bool is_aligned(const tern__view *view)
{
    return !view || tern__fours_fit(view->data, view->dtype);
}

static const double *number_of(const tern__view *view)
{
    return view ? (const double *)view->data : nullptr;
}

int tern__cuda_unscale(const tern__call *call)
{
    const tern__view *g = call->in[0], *out = call->out[0];
    if (!tern__view_is_contiguous(g) || (out && !tern__view_is_contiguous(out))) return TERN_E_UNSUPPORTED;
    problem p = {};
    p.g = g->data;
    p.g_dtype = g->dtype;
    p.out = out ? out->data : nullptr;
    p.out_dtype = out ? out->dtype : 0;
    p.count = tern__view_count(g);
    p.factor = ((const tern__unscale_attr *)call->attr)->factor;
    p.bad = call->out[1] ? (double *)call->out[1]->data : nullptr;
    p.by = number_of(call->in[TERN__UNSCALE_FACTOR]);
    p.drop = number_of(call->in[TERN__UNSCALE_DROP]);
    p.add = call->add[1];
    p.fours = is_aligned(g) && is_aligned(out);
    p.pieces = tern__sum_pieces(p.count, LEAST);
    if (p.pieces > 1 && p.bad)
        p.partial = (double *)tern__cuda_scratch(call, (size_t)p.pieces * sizeof(double));
    if (p.pieces > 1 && p.bad && !p.partial) return TERN_E_MEMORY;
    int status = tern__cuda_launch(call, run, p.pieces, THREADS, 0, p);
    if (!status && p.partial) status = tern__cuda_launch(call, close, 1, TERN__WARP, 0, p);
    tern__cuda_scratch_free(call, p.partial);
    return status;
}
