/* f64_pool.c - max and average pooling and their gradients in f64, window by window. The spans of each
 * slice, row and column are computed first. Threads take planes. A gradient is cleared, unless the caller
 * adds, and every window adds to it. */
#include "kernels/cpu/loops.h"
#include "kernels/pool.h"

#include <math.h>
#include <string.h>

typedef struct pooling {
    const tern__call *call;
    const tern__pool_attr *attr;
    double *x, *y;           /* or their gradients */
    const tern__view *place; /* NULL: not wanted */
    tern__space in, out;
    const tern__pool_span *spans[TERN__SPACE]; /* of each slice, row and column of y */
    int64_t step[TERN__SPACE];                 /* between neighbouring places of a window */
} pooling;

/* The window of y's element `number`; its corner is an index in x, possibly outside of the plane. */
typedef struct window {
    tern__pool_span d, r, c;
    int64_t corner, number;
} window;

#define EACH_PLACE(w)                                                                                        \
    for (int64_t d = (w)->d.first; d < (w)->d.last; d++)                                                     \
        for (int64_t r = (w)->r.first; r < (w)->r.last; r++)                                                 \
            for (int64_t c = (w)->c.first; c < (w)->c.last; c++)

static inline double *x_at(const pooling *p, const window *w, int64_t d, int64_t r, int64_t c)
{
    return p->x + w->corner + d * p->step[0] + r * p->step[1] + c * p->step[2];
}

static inline double divisor(const window *w)
{
    return (double)(w->d.divisor * w->r.divisor * w->c.divisor);
}

/* ---- one window ---- */

static inline void put_place(const pooling *p, int64_t i, int64_t place)
{
    if (p->place->dtype == TERN_U8)
        ((uint8_t *)p->place->data)[i] = (uint8_t)place;
    else
        ((int32_t *)p->place->data)[i] = (int32_t)place;
}

static inline int64_t get_place(const pooling *p, int64_t i)
{
    return p->place->dtype == TERN_U8 ? ((const uint8_t *)p->place->data)[i]
                                      : ((const int32_t *)p->place->data)[i];
}

static inline void max_window(const pooling *p, const window *w)
{
    double best = -INFINITY;
    int64_t place = tern__pool_place(p->attr, w->d.first, w->r.first, w->c.first);
    EACH_PLACE(w)
    {
        double v = *x_at(p, w, d, r, c);
        if (!(v > best) && v == v) continue; /* the first of equal values, the last NaN */
        best = v;
        place = tern__pool_place(p->attr, d, r, c);
    }
    p->y[w->number] = best;
    if (p->place) put_place(p, w->number, place);
}

static inline void max_grad_window(const pooling *p, const window *w)
{
    if (w->d.first >= w->d.last || w->r.first >= w->r.last || w->c.first >= w->c.last) return;
    int64_t place = get_place(p, w->number), columns = p->attr->kernel[2], row = place / columns;
    int64_t rows = p->attr->kernel[1];
    *x_at(p, w, row / rows, row % rows, place % columns) += p->y[w->number];
}

static inline void avg_window(const pooling *p, const window *w)
{
    double sum = 0;
    EACH_PLACE(w) sum += *x_at(p, w, d, r, c);
    p->y[w->number] = sum / divisor(w);
}

static inline void avg_grad_window(const pooling *p, const window *w)
{
    double share = p->y[w->number] / divisor(w);
    EACH_PLACE(w) * x_at(p, w, d, r, c) += share;
}

/* ---- all windows of a plane ---- */

#define PLANE_LOOP(name, do_window)                                                                          \
    static void name(const pooling *p, int64_t plane)                                                        \
    {                                                                                                        \
        window w = {.number = plane * p->out.count};                                                         \
        for (int64_t slice = 0; slice < p->out.size[0]; slice++)                                             \
            for (int64_t row = 0; row < p->out.size[1]; row++)                                               \
                for (int64_t col = 0; col < p->out.size[2]; col++, w.number++) {                             \
                    w.d = p->spans[0][slice];                                                                \
                    w.r = p->spans[1][row];                                                                  \
                    w.c = p->spans[2][col];                                                                  \
                    w.corner = plane * p->in.count + w.c.corner +                                            \
                               (w.d.corner * p->in.size[1] + w.r.corner) * p->in.size[2];                    \
                    do_window(p, &w);                                                                        \
                }                                                                                            \
    }
PLANE_LOOP(max_plane, max_window)
PLANE_LOOP(max_grad_plane, max_grad_window)
PLANE_LOOP(avg_plane, avg_window)
PLANE_LOOP(avg_grad_plane, avg_grad_window)

/* ---- the kernels ---- */

typedef void (*plane_fn)(const pooling *p, int64_t plane);

static plane_fn function_of(tern__kernel kernel)
{
    switch (kernel) {
    case TERN__MAX_POOL: return max_plane;
    case TERN__MAX_POOL_GRAD: return max_grad_plane;
    case TERN__AVG_POOL: return avg_plane;
    default: return avg_grad_plane;
    }
}

static int find_spans(pooling *p)
{
    const int64_t *out = p->out.size;
    tern__pool_span *spans = tern__loop_scratch(p->call, (size_t)(out[0] + out[1] + out[2]) * sizeof(*spans));
    if (!spans) return TERN_E_MEMORY;
    for (int axis = 0; axis < TERN__SPACE; axis++) {
        p->spans[axis] = spans;
        for (int64_t i = 0; i < out[axis]; i++) *spans++ = tern__span_of(p->attr, axis, p->in.size[axis], i);
    }
    return TERN_OK;
}

static bool f64_pool_is_taken(const tern__view *view)
{
    return view->dtype == TERN_F64 && tern__view_is_contiguous(view);
}

int tern__f64_pool(const tern__call *call)
{
    plane_fn fn = function_of(call->kernel);
    bool gradient = fn == max_grad_plane || fn == avg_grad_plane;
    const tern__view *x = gradient ? call->out[0] : call->in[0], *y = gradient ? call->in[0] : call->out[0];
    pooling p = {.call = call, .attr = call->attr, .x = x->data, .y = y->data};
    p.place = gradient ? call->in[1] : call->out[1];
    p.in = tern__space_of(x);
    p.out = tern__space_of(y);
    p.step[0] = p.attr->dilation[0] * p.in.size[1] * p.in.size[2];
    p.step[1] = p.attr->dilation[1] * p.in.size[2];
    p.step[2] = p.attr->dilation[2];
    if (!f64_pool_is_taken(x) || !f64_pool_is_taken(y) || (p.place && !tern__view_is_contiguous(p.place)) ||
        (!gradient && call->add[0]))
        return TERN_E_UNSUPPORTED;
    if (find_spans(&p)) return TERN_E_MEMORY;
    int64_t planes = x->shape[0] * x->shape[1];
    int threads = tern__loop_threads(call, tern__view_count(x));
    if (gradient && !call->add[0]) memset(p.x, 0, tern__view_bytes(x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < planes; i++) fn(&p, i);
    return TERN_OK;
}
