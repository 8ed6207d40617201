#include "kernels/pool.h"
#include "kernels/reference/reference.h"

#include <math.h>

/* What y's element i sees: rows, columns, and the number of its plane's first element in x. */
typedef struct window {
    tern__span row, col;
    int64_t plane;
} window;

static window window_of(const tern__call *call, const tern__view *x, const tern__view *y, int64_t i)
{
    int64_t rows = y->shape[2], cols = y->shape[3];
    return (window){.row = tern__span_of(call->attr, 0, x->shape[2], i / cols % rows),
                    .col = tern__span_of(call->attr, 1, x->shape[3], i % cols),
                    .plane = i / (rows * cols) * x->shape[2] * x->shape[3]};
}

/* The number in x of what kernel place (r, c) sees. */
static int64_t number(const tern__call *call, const tern__view *x, const window *w, int64_t r, int64_t c)
{
    const tern__pool_attr *p = call->attr;
    return w->plane + (w->row.corner + r * p->dilation[0]) * x->shape[3] + w->col.corner + c * p->dilation[1];
}

#define EACH_PLACE(w)                                                                                        \
    for (int64_t r = (w).row.first; r < (w).row.last; r++)                                                   \
        for (int64_t c = (w).col.first; c < (w).col.last; c++)

static int64_t kernel_width(const tern__call *call)
{
    return ((const tern__pool_attr *)call->attr)->kernel[1];
}

int tern__reference_max_pool2d(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y);
    for (int64_t i = 0; i < count; i++) {
        window w = window_of(call, x, y, i);
        double best = -INFINITY;
        int64_t place = w.row.first * kernel_width(call) + w.col.first;
        EACH_PLACE(w)
        {
            double v = tern__view_get(x, number(call, x, &w, r, c));
            if (!(v > best) && v == v) continue; /* the first of equals, the last NaN */
            best = v;
            place = r * kernel_width(call) + c;
        }
        tern__reference_put(call, 0, i, best);
        if (call->out[1]) tern__view_set(call->out[1], i, (double)place);
    }
    return TERN_OK;
}

/* dx is summed up in double. NULL: out of memory. */
static double *open_sums(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    size_t bytes = (size_t)count * sizeof(double);
    const char *name = tern__kernel_name(call->kernel);
    double *sums = tern__device_scratch(call->device, TERN__SCRATCH_OPERAND, bytes);
    if (!sums) tern__error_set(call->err, name, TERN_E_MEMORY, "%s: out of memory: %zu bytes", name, bytes);
    for (int64_t i = 0; sums && i < count; i++) sums[i] = 0;
    return sums;
}

static int close_sums(const tern__call *call, const double *sums)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count; i++) tern__reference_put(call, 0, i, sums[i]);
    return TERN_OK;
}

int tern__reference_max_pool2d_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy);
    double *sums = open_sums(call);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        window w = window_of(call, dx, dy, i);
        int64_t place = (int64_t)tern__view_get(call->in[1], i);
        EACH_PLACE(w)
        if (r * kernel_width(call) + c == place) sums[number(call, dx, &w, r, c)] += tern__view_get(dy, i);
    }
    return close_sums(call, sums);
}

static double divisor(const window *w)
{
    return (double)(w->row.divisor * w->col.divisor);
}

int tern__reference_avg_pool2d(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(y);
    for (int64_t i = 0; i < count; i++) {
        window w = window_of(call, x, y, i);
        double sum = 0;
        EACH_PLACE(w) sum += tern__view_get(x, number(call, x, &w, r, c));
        tern__reference_put(call, 0, i, sum / divisor(&w));
    }
    return TERN_OK;
}

int tern__reference_avg_pool2d_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    int64_t count = tern__view_count(dy);
    double *sums = open_sums(call);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        window w = window_of(call, dx, dy, i);
        EACH_PLACE(w) sums[number(call, dx, &w, r, c)] += tern__view_get(dy, i) / divisor(&w);
    }
    return close_sums(call, sums);
}
