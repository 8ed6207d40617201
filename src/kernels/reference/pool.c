/* pool.c - max and average pooling and their gradients. */
#include "kernels/pool.h"
#include "kernels/reference/reference.h"

#include <math.h>

/* The window of y's element i: depths, rows, columns, and the index of its plane's first element in x. */
typedef struct window {
    tern__pool_span span[TERN__SPACE];
    tern__space in;
    int64_t plane;
} window;

static window pool_window_of(const tern__call *call, const tern__view *x, const tern__view *y, int64_t i)
{
    window w = {.in = tern__space_of(x)};
    tern__space out = tern__space_of(y);
    w.plane = i / out.count * w.in.count;
    for (int axis = TERN__SPACE - 1; axis >= 0; i /= out.size[axis--])
        w.span[axis] = tern__span_of(call->attr, axis, w.in.size[axis], i % out.size[axis]);
    return w;
}

/* The index in x that kernel position (d, r, c) reads. */
static int64_t pool_number(const tern__call *call, const window *w, int64_t d, int64_t r, int64_t c)
{
    const tern__pool_attr *p = call->attr;
    int64_t at = 0, place[TERN__SPACE] = {d, r, c};
    for (int axis = 0; axis < TERN__SPACE; axis++)
        at = at * w->in.size[axis] + w->span[axis].corner + place[axis] * p->dilation[axis];
    return w->plane + at;
}

#define EACH_PLACE(w)                                                                                        \
    for (int64_t d = (w).span[0].first; d < (w).span[0].last; d++)                                           \
        for (int64_t r = (w).span[1].first; r < (w).span[1].last; r++)                                       \
            for (int64_t c = (w).span[2].first; c < (w).span[2].last; c++)

int tern__reference_max_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y);
    for (int64_t i = 0; i < count; i++) {
        window w = pool_window_of(call, x, y, i);
        double best = -INFINITY;
        int64_t place = tern__pool_place(call->attr, w.span[0].first, w.span[1].first, w.span[2].first);
        EACH_PLACE(w)
        {
            double v = tern__view_get(x, pool_number(call, &w, d, r, c));
            if (!(v > best) && v == v) continue; /* the first of equal values, the last NaN */
            best = v;
            place = tern__pool_place(call->attr, d, r, c);
        }
        tern__reference_put(call, 0, i, best);
        if (call->out[1]) tern__view_set(call->out[1], i, (double)place);
    }
    return TERN_OK;
}

int tern__reference_max_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy);
    double *sums = tern__reference_sums_new(call, 0);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        window w = pool_window_of(call, dx, dy, i);
        int64_t place = (int64_t)tern__view_get(call->in[1], i);
        EACH_PLACE(w)
        if (tern__pool_place(call->attr, d, r, c) == place)
            sums[tern__view_offset(dx, pool_number(call, &w, d, r, c))] += tern__view_get(dy, i);
    }
    tern__reference_sums_put(call, sums, 1);
    return TERN_OK;
}

static double divisor(const window *w)
{
    return (double)(w->span[0].divisor * w->span[1].divisor * w->span[2].divisor);
}

int tern__reference_avg_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y);
    for (int64_t i = 0; i < count; i++) {
        window w = pool_window_of(call, x, y, i);
        double sum = 0;
        EACH_PLACE(w) sum += tern__view_get(x, pool_number(call, &w, d, r, c));
        tern__reference_put(call, 0, i, sum / divisor(&w));
    }
    return TERN_OK;
}

int tern__reference_avg_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy);
    double *sums = tern__reference_sums_new(call, 0);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        window w = pool_window_of(call, dx, dy, i);
        EACH_PLACE(w)
        sums[tern__view_offset(dx, pool_number(call, &w, d, r, c))] += tern__view_get(dy, i) / divisor(&w);
    }
    tern__reference_sums_put(call, sums, 1);
    return TERN_OK;
}

/* ---- the mean over all positions of each channel ---- */

static int64_t positions_of(const tern__view *x)
{
    int64_t positions = 1;
    for (int d = 2; d < x->ndim; d++) positions *= x->shape[d];
    return positions;
}

int tern__reference_global_avg_pool(const tern__call *call)
{
    int64_t planes = tern__view_count(call->out[0]), positions = positions_of(call->in[0]);
    for (int64_t i = 0; i < planes; i++) {
        double sum = 0;
        for (int64_t p = 0; p < positions; p++) sum += tern__view_get(call->in[0], i * positions + p);
        tern__reference_put(call, 0, i, sum / (double)positions);
    }
    return TERN_OK;
}

int tern__reference_global_avg_pool_grad(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]), positions = positions_of(call->out[0]);
    for (int64_t i = 0; i < count; i++)
        tern__reference_put(call, 0, i, tern__view_get(call->in[0], i / positions) / (double)positions);
    return TERN_OK;
}
