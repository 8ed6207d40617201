#include "kernels/pool.h"
#include "kernels/reference/reference.h"

#include <math.h>

/* The window of y's element i and the number of its plane's first element in x. */
static tern__window window_of(const tern__call *call, const tern__view *x, const tern__view *y, int64_t i,
                              int64_t *plane)
{
    int64_t rows = y->shape[2], cols = y->shape[3];
    *plane = i / (rows * cols) * x->shape[2] * x->shape[3];
    return tern__window_of(call->attr, &x->shape[2], i / cols % rows, i % cols);
}

static int64_t kernel_width(const tern__call *call)
{
    return ((const tern__pool_attr *)call->attr)->kernel[1];
}

int tern__reference_max_pool2d(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y), plane;
    for (int64_t i = 0; i < count; i++) {
        tern__window w = window_of(call, x, y, i, &plane);
        double best = -INFINITY;
        int64_t at[2] = {w.first[0], w.first[1]};
        for (int64_t r = w.first[0]; r < w.last[0]; r++)
            for (int64_t c = w.first[1]; c < w.last[1]; c++) {
                double v = tern__view_get(x, plane + r * x->shape[3] + c);
                if (!(v > best) && v == v) continue; /* the first of equals, the last NaN */
                best = v;
                at[0] = r;
                at[1] = c;
            }
        tern__reference_put(call, 0, i, best);
        if (!call->out[1]) continue;
        int64_t place = (at[0] - w.corner[0]) * kernel_width(call) + at[1] - w.corner[1];
        tern__view_set(call->out[1], i, (double)place);
    }
    return TERN_OK;
}

static void start(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count && !call->add[0]; i++) tern__view_set(call->out[0], i, 0);
}

static void add_to(const tern__view *dx, int64_t i, double value)
{
    tern__view_set(dx, i, tern__view_get(dx, i) + value);
}

int tern__reference_max_pool2d_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy), plane;
    start(call);
    for (int64_t i = 0; i < count; i++) {
        tern__window w = window_of(call, dx, dy, i, &plane);
        int64_t place = (int64_t)tern__view_get(call->in[1], i);
        int64_t r = w.corner[0] + place / kernel_width(call), c = w.corner[1] + place % kernel_width(call);
        add_to(dx, plane + r * dx->shape[3] + c, tern__view_get(dy, i));
    }
    return TERN_OK;
}

int tern__reference_avg_pool2d(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y), plane;
    for (int64_t i = 0; i < count; i++) {
        tern__window w = window_of(call, x, y, i, &plane);
        double sum = 0;
        for (int64_t r = w.first[0]; r < w.last[0]; r++)
            for (int64_t c = w.first[1]; c < w.last[1]; c++)
                sum += tern__view_get(x, plane + r * x->shape[3] + c);
        tern__reference_put(call, 0, i, sum / (double)w.divisor);
    }
    return TERN_OK;
}

int tern__reference_avg_pool2d_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy), plane;
    start(call);
    for (int64_t i = 0; i < count; i++) {
        tern__window w = window_of(call, dx, dy, i, &plane);
        double share = tern__view_get(dy, i) / (double)w.divisor;
        for (int64_t r = w.first[0]; r < w.last[0]; r++)
            for (int64_t c = w.first[1]; c < w.last[1]; c++) add_to(dx, plane + r * dx->shape[3] + c, share);
    }
    return TERN_OK;
}
