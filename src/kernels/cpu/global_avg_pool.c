/* global_avg_pool.c - the mean over all positions of each channel, and its gradient, which is the same value
 * everywhere. A run of positions is summed in f32, the runs in double. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

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

/* The means of one plane: of 16 channels, or of one whose positions lie in the lanes. */
TERN__SIMD static void mean(float *y, const float *x, const shape *s)
{
    int64_t rows = s->width == LANES ? s->positions : s->positions / LANES;
    double sum[LANES] = {0}, all = 0;
    for (int64_t first = 0; first < rows; first += RUN) {
        int64_t last = TERN__MIN(rows, first + RUN);
        tern__lanes run = {0};
        for (int64_t r = first; r < last; r++) run += tern__lanes_load(x + r * LANES, LANES);
        for (int l = 0; l < LANES; l++) sum[l] += (double)run[l];
    }
    for (int l = 0; l < LANES && s->width == LANES; l++) y[l] = (float)(sum[l] / (double)s->positions);
    if (s->width == LANES) return;
    for (int64_t p = rows * LANES; p < s->positions; p++) all += (double)x[p];
    for (int l = 0; l < LANES; l++) all += sum[l];
    *y = (float)(all / (double)s->positions);
}

int tern__cpu_global_avg_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (tern__is_half(x)) return tern__cpu_widened(call, tern__cpu_global_avg_pool);
    if (!tern__is_dense(x, x) || !tern__is_dense(y, y) || call->add[0]) return TERN_E_UNSUPPORTED;
    shape s = shape_of(call, x);
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.planes; i++)
        mean((float *)y->data + i * s.width, (const float *)x->data + i * s.width * s.positions, &s);
    return TERN_OK;
}

TERN__SIMD static void spread(float *dx, const float *dy, const shape *s, bool add)
{
    tern__lanes v = tern__lanes_load(dy, s->width);
    if (s->width == 1) v = (tern__lanes){0} + v[0];
    v /= (float)s->positions;
    int64_t all = s->positions * s->width, whole = all / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) tern__lanes_put(dx + i, v, LANES, add);
    if (whole < all) tern__lanes_put(dx + whole, v, (int)(all - whole), add);
}

int tern__cpu_global_avg_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    if (tern__is_half(dy)) return tern__cpu_widened(call, tern__cpu_global_avg_pool_grad);
    if (!tern__is_dense(dx, dx) || !tern__is_dense(dy, dy)) return TERN_E_UNSUPPORTED;
    shape s = shape_of(call, dx);
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.planes; i++)
        spread((float *)dx->data + i * s.width * s.positions, (const float *)dy->data + i * s.width, &s,
               call->add[0]);
    return TERN_OK;
}
