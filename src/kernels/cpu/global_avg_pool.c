/* global_avg_pool.c - the mean over all positions of each channel, and its gradient, which is the same
 * value everywhere. A run of positions is summed in f32, the runs in double. f32, bf16 and f16, converted
 * in registers. In f64 the means, seen with x's shape, are computed by SUM, and the gradient by a scaled
 * copy. */
#include "kernels/cpu/global_avg_pool_planes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/pointwise.h"
#include "kernels/reduce.h"

typedef tern__avg_shape shape;

static shape shape_of(const tern__call *call, const tern__view *x)
{
    shape s = {.positions = 1, .width = x->layout == TERN__BLOCKED16 ? TERN__BLOCK : 1};
    for (int d = 2; d < x->ndim; d++) s.positions *= x->shape[d];
    s.planes = x->shape[0] * x->shape[1] / s.width;
    s.threads = tern__loop_threads(call, tern__view_count(x));
    return s;
}

/* Whether both tensors are contiguous and of one dtype. */
static bool global_avg_takes(const tern__view *a, const tern__view *b)
{
    return a->dtype == b->dtype && tern__view_is_dense(a) && tern__view_is_dense(b);
}

/* (N, C) broadcast to x's shape. */
static tern__view global_avg_seen_as(const tern__view *x, const tern__view *means)
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
    tern__view seen = global_avg_seen_as(call->in[0], call->out[0]);
    tern__call sum = *call;
    sum.kernel = TERN__SUM;
    sum.out[0] = &seen;
    sum.attr = &attr;
    return tern__cpu_sum(&sum);
}

int tern__cpu_global_avg_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!global_avg_takes(x, y) || y->layout != TERN__PLAIN || call->add[0]) return TERN_E_UNSUPPORTED;
    shape s = shape_of(call, x);
    if (x->dtype == TERN_F64) return mean_f64(call, &s);
    tern__avg_mean_fn mean = TERN__BY_WIDTH(tern__avg)->mean;
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.planes; i++) mean(y, x, i, &s);
    return TERN_OK;
}

static int spread_f64(const tern__call *call, const shape *s)
{
    tern__pointwise_attr attr = {{1 / (double)s->positions}};
    tern__view seen = global_avg_seen_as(call->out[0], call->in[0]);
    tern__call scale = *call;
    scale.kernel = TERN__SCALE;
    scale.in[0] = &seen;
    scale.attr = &attr;
    return tern__cpu_pointwise(&scale);
}

int tern__cpu_global_avg_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    if (!global_avg_takes(dx, dy) || dy->layout != TERN__PLAIN) return TERN_E_UNSUPPORTED;
    shape s = shape_of(call, dx);
    if (dx->dtype == TERN_F64) return spread_f64(call, &s);
    tern__avg_spread_fn spread = TERN__BY_WIDTH(tern__avg)->spread;
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
    for (int64_t i = 0; i < s.planes; i++) spread(dx, dy, i, &s, call->add[0]);
    return TERN_OK;
}
