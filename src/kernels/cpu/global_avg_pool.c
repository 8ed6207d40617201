/* global_avg_pool.c - the mean over all positions of each channel, and its gradient, which is the same value
 * everywhere. A run of positions is summed in f32, the runs in double. f32, bf16 and f16, converted in
 * registers; in f64 the means, seen with x's shape, are what a sum gives and a scaled copy takes. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/pointwise.h"
#include "kernels/reduce.h"

#define LANES TERN__LANES
#define RUN   64

/* A plane: the positions of one channel, or of a block of 16 in the blocked layout. */
typedef struct shape {
    int64_t planes, positions;
    int width; /* channels of a plane */
    int threads;
} shape;

static shape shape_of(const tern__call *call, const tern__view *x)
{
    shape s = {.positions = 1, .width = x->layout == TERN__BLOCKED16 ? LANES : 1};
    for (int d = 2; d < x->ndim; d++) s.positions *= x->shape[d];
    s.planes = x->shape[0] * x->shape[1] / s.width;
    s.threads = tern__loop_threads(call, tern__view_count(x));
    return s;
}

/* The means of plane i: of 16 channels, or of one whose positions lie in the lanes. */
TERN__INLINE void mean_of(const tern__view *y, const tern__view *x, int64_t i, const shape *s,
                          tern_dtype dtype)
{
    int64_t rows = s->width == LANES ? s->positions : s->positions / LANES,
            from = i * s->width * s->positions;
    double sum[LANES] = {0}, all = 0;
    for (int64_t first = 0; first < rows; first += RUN) {
        int64_t last = TERN__MIN(rows, first + RUN);
        tern__lanes run = {0};
        for (int64_t r = first; r < last; r++)
            run += tern__lanes_get(x->data, dtype, from + r * LANES, LANES);
        for (int l = 0; l < LANES; l++) sum[l] += (double)run[l];
    }
    tern__lanes means = {0};
    for (int l = 0; l < LANES && s->width == LANES; l++) means[l] = (float)(sum[l] / (double)s->positions);
    if (s->width == LANES) {
        tern__lanes_set(y->data, dtype, i * LANES, means, LANES, false);
        return;
    }
    int left = (int)(s->positions - rows * LANES);
    all = tern__lanes_sum(tern__lanes_get(x->data, dtype, from + rows * LANES, left));
    for (int l = 0; l < LANES; l++) all += sum[l];
    means[0] = (float)(all / (double)s->positions);
    tern__lanes_set(y->data, dtype, i, means, 1, false);
}

TERN__SIMD static void mean(const tern__view *y, const tern__view *x, int64_t i, const shape *s)
{
    if (x->dtype == TERN_F32)
        mean_of(y, x, i, s, TERN_F32);
    else if (x->dtype == TERN_BF16)
        mean_of(y, x, i, s, TERN_BF16);
    else
        mean_of(y, x, i, s, TERN_F16);
}

/* Two tensors without gaps of one dtype. */
static bool takes(const tern__view *a, const tern__view *b)
{
    return a->dtype == b->dtype && tern__view_is_dense(a) && tern__view_is_dense(b);
}

/* (N, C) seen as x, with the same value at all positions. */
static tern__view seen_as(const tern__view *x, const tern__view *means)
{
    tern__view seen = *means;
    seen.ndim = x->ndim;
    for (int d = 2; d < x->ndim; d++) {
        seen.shape[d] = x->shape[d];
        seen.stride[d] = 0;
    }
    return seen;
}

static int mean_f64(const tern__call *call, const shape *s)
{
    tern__factor_attr attr = {1 / (double)s->positions};
    tern__view seen = seen_as(call->in[0], call->out[0]);
    tern__call sum = *call;
    sum.kernel = TERN__SUM;
    sum.out[0] = &seen;
    sum.attr = &attr;
    return tern__cpu_sum(&sum);
}

int tern__cpu_global_avg_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!takes(x, y) || y->layout != TERN__PLAIN || call->add[0]) return TERN_E_UNSUPPORTED;
    shape s = shape_of(call, x);
    if (x->dtype == TERN_F64) return mean_f64(call, &s);
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.planes; i++) mean(y, x, i, &s);
    return TERN_OK;
}

TERN__INLINE void spread_of(const tern__view *dx, const tern__view *dy, int64_t i, const shape *s, bool add,
                            tern_dtype dtype)
{
    tern__lanes v = tern__lanes_get(dy->data, dtype, i * s->width, s->width);
    if (s->width == 1) v = (tern__lanes){0} + v[0];
    v /= (float)s->positions;
    int64_t all = s->positions * s->width, whole = all / LANES * LANES, at = i * all;
    for (int64_t k = 0; k < whole; k += LANES) tern__lanes_set(dx->data, dtype, at + k, v, LANES, add);
    if (whole < all) tern__lanes_set(dx->data, dtype, at + whole, v, (int)(all - whole), add);
}

TERN__SIMD static void spread(const tern__view *dx, const tern__view *dy, int64_t i, const shape *s, bool add)
{
    if (dx->dtype == TERN_F32)
        spread_of(dx, dy, i, s, add, TERN_F32);
    else if (dx->dtype == TERN_BF16)
        spread_of(dx, dy, i, s, add, TERN_BF16);
    else
        spread_of(dx, dy, i, s, add, TERN_F16);
}

static int spread_f64(const tern__call *call, const shape *s)
{
    tern__pointwise_attr attr = {{1 / (double)s->positions}};
    tern__view seen = seen_as(call->out[0], call->in[0]);
    tern__call scale = *call;
    scale.kernel = TERN__SCALE;
    scale.in[0] = &seen;
    scale.attr = &attr;
    return tern__cpu_pointwise(&scale);
}

int tern__cpu_global_avg_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    if (!takes(dx, dy) || dy->layout != TERN__PLAIN) return TERN_E_UNSUPPORTED;
    shape s = shape_of(call, dx);
    if (dx->dtype == TERN_F64) return spread_f64(call, &s);
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.planes; i++) spread(dx, dy, i, &s, call->add[0]);
    return TERN_OK;
}
