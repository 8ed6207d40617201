/* batch_norm_inner.h - what batch norm's forward and backward kernels share: operands, merging the results
 * of a block's threads, and launching. */
#ifndef TERN_SRC_CUDA_KERNELS_BATCH_NORM_INNER_H
#define TERN_SRC_CUDA_KERNELS_BATCH_NORM_INNER_H

#include "cuda/kernels/columns.h"
#include "cuda/kernels.h"

extern "C" {
#include "kernels/batch_norm.h"
}

#define THREADS TERN__COLUMN_THREADS
#define HEAD    4 /* rows that statistics read at a time; their mean is the shift */
#define AHEAD   2 /* rows of several operands that are read at a time */

typedef enum mask { NOTHING, BY_OUTPUT, BY_INPUT, LEAVING } mask; /* LEAVING: by output, and dy' is written */

typedef struct batch_norm {
    tern__columns k;
    const void *x, *dy, *output, *residual;
    void *y, *dx, *dresidual; /* NULL: not wanted */
    tern__vector mean, var, weight, bias, s, p;
    double eps, count;
    int mask; /* how dy is masked by a ReLU */
    bool relu, add_y, add_dx, add_dresidual;
    double *partial; /* [2][parts][channels] */
} batch_norm;

/* ---- constants of a thread's channels ---- */

enum { MEAN, SCALE, BIAS, MIDDLE, SLOPE, CONSTANTS };

template <class R, int N> struct batch_norm_constants {
    R of[CONSTANTS][N];
};

/* What the R next to a mean lacks of it. Far from zero this is more than the deviation. */
template <class R> static __device__ __forceinline__ double mean_rest(double mean)
{
    return isinf(mean) ? 0 : mean - (double)(R)mean;
}

/* 1 / deviation. Only a variance beyond R is handled in double, which takes longer. */
template <class R> static __device__ __forceinline__ R inverse_deviation(double var, double eps)
{
    return isinf((R)var) ? (R)(1 / sqrt(var)) : 1 / sqrt((R)var + (R)eps);
}

/* y = (x - mean) scale + bias, where MEAN is the R next to the mean and BIAS has the rest; for the gradient
 * the means of dy' and of dy' xhat, the latter divided by the deviation. All loads are issued before the
 * first is used. */
template <class R>
static __device__ __forceinline__ void find_constants(const batch_norm &a, int64_t c, R of[CONSTANTS])
{
    double mean = tern__vector_get<double>(a.mean, c, 0), var = tern__vector_get<double>(a.var, c, 0);
    R weight = tern__vector_get<R>(a.weight, c, 1), bias = tern__vector_get<R>(a.bias, c, 0);
    R middle = tern__vector_get<R>(a.s, c, 0), slope = tern__vector_get<R>(a.p, c, 0);
    R inverse = inverse_deviation<R>(var, a.eps), rest = (R)mean_rest<R>(mean);
    of[MEAN] = (R)mean;
    of[SCALE] = inverse * weight;
    of[BIAS] = rest == 0 ? bias : bias - rest * of[SCALE];
    of[SLOPE] = slope * inverse / (R)a.count;
    of[MIDDLE] = middle / (R)a.count;
    if (rest != 0) of[MIDDLE] -= rest * of[SLOPE];
}

/* Each thread computes the constants of one channel for the whole block: reading so many vectors of any
 * dtype takes as long as several rows. */
template <class R, int N>
static __device__ __forceinline__ batch_norm_constants<R, N> constants_of(const batch_norm &a,
                                                                          const tern__seat &s)
{
    __shared__ R found[CONSTANTS][THREADS];
    int each = a.k.is_last ? N : 1, count = a.k.across * each, own = (int)threadIdx.x;
    int64_t c = (int64_t)blockIdx.x * count + own;
    batch_norm_constants<R, N> k;
    R of[CONSTANTS] = {};
    if (own < count && c < a.k.channels) find_constants<R>(a, c, of);
    for (int i = 0; i < CONSTANTS; i++) found[i][own] = of[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CONSTANTS; i++)
#pragma unroll
        for (int l = 0; l < N; l++) k.of[i][l] = found[i][s.x * each + l % each];
    return k;
}

/* The gradient uses the same formula to find whether y was positive. */
template <class R, int N>
static __device__ __forceinline__ R affine(R x, const batch_norm_constants<R, N> &k, int l)
{
    return (x - k.of[MEAN][l]) * k.of[SCALE][l] + k.of[BIAS][l];
}

/* ---- launching ---- */

/* Whether the activation, if present, has x's layout and is contiguous. */
static bool stands_as(const tern__view *view, const tern__view *x)
{
    return !view || (view->dtype == x->dtype && view->layout == x->layout && tern__view_is_dense(view) &&
                     view->layout != TERN__BLOCKED16);
}

typedef struct fields {
    const tern__view *views[5]; /* the first is x */
} fields;

static bool takes(const fields *f)
{
    bool fine = tern__dtype_is_float(f->views[0]->dtype);
    for (int i = 0; i < 5; i++) fine &= stands_as(f->views[i], f->views[0]);
    return fine;
}

/* Lanes per bunch. */
static int lanes_of(const fields *f)
{
    const tern__view *x = f->views[0];
    int64_t positions = tern__positions_of(x);
    bool last = tern__columns_are_last(x, positions);
    return tern__bunch_lanes(f->views, 5, last ? x->shape[1] : positions);
}

typedef void (*kernel_fn)(batch_norm a);

static int launch(const tern__call *call, const batch_norm &a, kernel_fn kernel)
{
    return tern__cuda_launch(call, kernel, tern__columns_grid(a.k), THREADS, 0, a);
}

/* Allocates the results of the parts: two numbers per channel, and two more for the totals. */
static double *partial_new(const tern__call *call, const batch_norm &a)
{
    size_t numbers = 2 * (size_t)(a.k.parts + 1) * (size_t)a.k.channels;
    return (double *)tern__cuda_scratch(call, numbers * sizeof(double));
}

#endif
