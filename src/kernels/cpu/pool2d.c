/* pool2d.c - max and average pooling, plane by plane: the 16 channels of a block in the lanes, or one channel
 * of a plain tensor in the first lane. Max pooling keeps the place of the maximum in its window, the first
 * one of equals and the last NaN (as PyTorch does), in one byte; its gradient adds dy to each place of the
 * window where that is it. Planes do not overlap, so threads take planes. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/pool.h"

#include <math.h>

#define LANES TERN__LANES

/* One plane of x and of y; places belong to y. */
typedef struct plane {
    const tern__pool_attr *pool;
    int64_t in[2], out[2];
    float *x, *y;
    uint8_t *place;
    int width; /* floats at each position: 16 or 1 */
    bool add;
} plane;

typedef uint8_t bytes __attribute__((vector_size(LANES)));

TERN__INLINE tern__masks load_places(const uint8_t *from, int n)
{
    bytes b = {0};
    memcpy(&b, from, (size_t)n);
    return __builtin_convertvector(b, tern__masks);
}

TERN__INLINE void store_places(uint8_t *to, tern__masks v, int n)
{
    bytes b = __builtin_convertvector(v, bytes);
    memcpy(to, &b, (size_t)n);
}

TERN__INLINE float *x_at(const plane *p, int64_t row, int64_t col, int n)
{
    return p->x + (row * p->in[1] + col) * n;
}

TERN__INLINE int32_t place_of(const plane *p, const tern__window *w, int64_t row, int64_t col)
{
    return (int32_t)((row - w->corner[0]) * p->pool->kernel[1] + col - w->corner[1]);
}

/* ---- max ---- */

TERN__INLINE void max_window(const plane *p, const tern__window *w, float *y, uint8_t *place, int n)
{
    tern__lanes best = (tern__lanes){0} - INFINITY;
    tern__masks at = (tern__masks){0} + place_of(p, w, w->first[0], w->first[1]);
    for (int64_t row = w->first[0]; row < w->last[0]; row++)
        for (int64_t col = w->first[1]; col < w->last[1]; col++) {
            tern__lanes v = tern__lanes_load(x_at(p, row, col, n), n);
            tern__masks take = (v > best) | (v != v);
            best = (tern__lanes)(((tern__masks)v & take) | ((tern__masks)best & ~take));
            at = (place_of(p, w, row, col) & take) | (at & ~take);
        }
    tern__lanes_store(y, best, n);
    if (place) store_places(place, at, n);
}

TERN__INLINE void max_grad_window(const plane *p, const tern__window *w, const float *y, const uint8_t *place,
                                  int n)
{
    tern__lanes dy = tern__lanes_load(y, n);
    tern__masks at = load_places(place, n);
    for (int64_t row = w->first[0]; row < w->last[0]; row++)
        for (int64_t col = w->first[1]; col < w->last[1]; col++) {
            tern__masks here = at == place_of(p, w, row, col);
            tern__lanes_put(x_at(p, row, col, n), tern__lanes_where(here, dy), n, true);
        }
}

/* ---- average ---- */

TERN__INLINE void avg_window(const plane *p, const tern__window *w, float *y, int n)
{
    tern__lanes sum = {0};
    for (int64_t row = w->first[0]; row < w->last[0]; row++)
        for (int64_t col = w->first[1]; col < w->last[1]; col++)
            sum += tern__lanes_load(x_at(p, row, col, n), n);
    tern__lanes_store(y, sum / (float)w->divisor, n);
}

TERN__INLINE void avg_grad_window(const plane *p, const tern__window *w, const float *y, int n)
{
    tern__lanes share = tern__lanes_load(y, n) / (float)w->divisor;
    for (int64_t row = w->first[0]; row < w->last[0]; row++)
        for (int64_t col = w->first[1]; col < w->last[1]; col++)
            tern__lanes_put(x_at(p, row, col, n), share, n, true);
}

/* ---- planes ---- */

typedef enum what { MAX, MAX_GRAD, AVG, AVG_GRAD } what;

TERN__INLINE void windows(const plane *p, what kind, int n)
{
    for (int64_t row = 0; row < p->out[0]; row++)
        for (int64_t col = 0; col < p->out[1]; col++) {
            tern__window w = tern__window_of(p->pool, p->in, row, col);
            int64_t at = (row * p->out[1] + col) * n;
            uint8_t *place = p->place ? p->place + at : NULL;
            if (kind == MAX) max_window(p, &w, p->y + at, place, n);
            if (kind == MAX_GRAD) max_grad_window(p, &w, p->y + at, place, n);
            if (kind == AVG) avg_window(p, &w, p->y + at, n);
            if (kind == AVG_GRAD) avg_grad_window(p, &w, p->y + at, n);
        }
}

/* The kind and width of each loop are constants, so that nothing is decided inside. */
#define PLANE_LOOP(name, kind)                                                                               \
    TERN__SIMD static void name(const plane *p)                                                              \
    {                                                                                                        \
        if (p->width == LANES)                                                                               \
            windows(p, kind, LANES);                                                                         \
        else                                                                                                 \
            windows(p, kind, 1);                                                                             \
    }
PLANE_LOOP(max_plane, MAX)
PLANE_LOOP(max_grad_plane, MAX_GRAD)
PLANE_LOOP(avg_plane, AVG)
PLANE_LOOP(avg_grad_plane, AVG_GRAD)

static void grad_start(const plane *p)
{
    if (!p->add) memset(p->x, 0, (size_t)(p->in[0] * p->in[1] * p->width) * sizeof(*p->x));
}

static void run_plane(const plane *p, what kind)
{
    if (kind == MAX_GRAD || kind == AVG_GRAD) grad_start(p);
    static void (*const loops[])(const plane *) = {max_plane, max_grad_plane, avg_plane, avg_grad_plane};
    loops[kind](p);
}

/* x and y of one layout, `place` (of y) or NULL. */
static int pool(const tern__call *call, const tern__view *x, const tern__view *y, const tern__view *place,
                what kind)
{
    if (!tern__is_dense(x, x) || !tern__is_dense(y, x) || (place && place->dtype != TERN_U8))
        return TERN_E_UNSUPPORTED;
    int width = x->layout == TERN__BLOCKED16 ? LANES : 1;
    plane first = {.pool = call->attr,
                   .in = {x->shape[2], x->shape[3]},
                   .out = {y->shape[2], y->shape[3]},
                   .width = width,
                   .add = call->add[0]};
    int64_t planes = x->shape[0] * x->shape[1] / width;
    int64_t x_size = first.in[0] * first.in[1] * width, y_size = first.out[0] * first.out[1] * width;
    int threads = tern__loop_threads(call, planes * x_size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < planes; i++) {
        plane p = first;
        p.x = (float *)x->data + i * x_size;
        p.y = (float *)y->data + i * y_size;
        p.place = place ? (uint8_t *)place->data + i * y_size : NULL;
        run_plane(&p, kind);
    }
    return TERN_OK;
}

int tern__cpu_max_pool2d(const tern__call *call)
{
    return call->add[0] ? TERN_E_UNSUPPORTED : pool(call, call->in[0], call->out[0], call->out[1], MAX);
}

int tern__cpu_max_pool2d_grad(const tern__call *call)
{
    return pool(call, call->out[0], call->in[0], call->in[1], MAX_GRAD);
}

int tern__cpu_avg_pool2d(const tern__call *call)
{
    return call->add[0] ? TERN_E_UNSUPPORTED : pool(call, call->in[0], call->out[0], NULL, AVG);
}

int tern__cpu_avg_pool2d_grad(const tern__call *call)
{
    return pool(call, call->out[0], call->in[0], NULL, AVG_GRAD);
}
