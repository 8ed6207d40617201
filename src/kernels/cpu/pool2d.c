/* pool2d.c - max and average pooling, plane by plane and window by window. A plane is the 16 channels of a
 * block, which lie in the lanes, or one channel of a plain tensor. Max pooling keeps the place of the maximum
 * in its window, the first one of equals and the last NaN (as PyTorch does), in one byte; its gradient adds
 * dy where the place says. Planes do not overlap, so threads take planes. */
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
} plane;

TERN__INLINE float *x_at(const plane *p, int64_t row, int64_t col, int n)
{
    return p->x + (row * p->in[1] + col) * n;
}

TERN__INLINE int32_t place_of(const plane *p, const tern__window *w, int64_t row, int64_t col)
{
    return (int32_t)((row - w->corner[0]) * p->pool->kernel[1] + col - w->corner[1]);
}

#define EACH_IN_WINDOW(w)                                                                                    \
    for (int64_t row = (w)->first[0]; row < (w)->last[0]; row++)                                             \
        for (int64_t col = (w)->first[1]; col < (w)->last[1]; col++)

/* ---- 16 channels ---- */

/* Four lanes, which every target compares at once (see lanes.h). */
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
typedef uint8_t quad_bytes __attribute__((vector_size(4)));

typedef struct maximum {
    quad best;
    quad_mask place;
} maximum;

TERN__INLINE void take(maximum *m, const float *x, int32_t place)
{
    quad v;
    memcpy(&v, x, sizeof(v));
    quad_mask larger = (v > m->best) | (v != v);
    m->best = (quad)(((quad_mask)v & larger) | ((quad_mask)m->best & ~larger));
    m->place = (place & larger) | (m->place & ~larger);
}

TERN__INLINE void max_block(const plane *p, const tern__window *w, float *y, uint8_t *place)
{
    enum { QUAD = 4, QUADS = LANES / QUAD };
    maximum m[QUADS];
    for (int q = 0; q < QUADS; q++) {
        m[q].best = (quad){0} - INFINITY;
        m[q].place = (quad_mask){0} + place_of(p, w, w->first[0], w->first[1]);
    }
    EACH_IN_WINDOW(w)
    for (int q = 0; q < QUADS; q++)
        take(&m[q], x_at(p, row, col, LANES) + q * QUAD, place_of(p, w, row, col));
    for (int q = 0; q < QUADS; q++) {
        quad_bytes bytes = __builtin_convertvector(m[q].place, quad_bytes);
        memcpy(y + q * QUAD, &m[q].best, sizeof(quad));
        if (place) memcpy(place + q * QUAD, &bytes, sizeof(bytes));
    }
}

TERN__INLINE void max_grad_block(const plane *p, const tern__window *w, const float *y, const uint8_t *place)
{
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    bytes b;
    memcpy(&b, place, sizeof(b));
    tern__masks at = __builtin_convertvector(b, tern__masks);
    tern__lanes dy = tern__lanes_load(y, LANES);
    EACH_IN_WINDOW(w)
    {
        tern__masks other = at ^ place_of(p, w, row, col); /* 0 where it is here, else positive */
        tern__lanes_put(x_at(p, row, col, LANES), tern__lanes_where((other - 1) >> 31, dy), LANES, true);
    }
}

TERN__INLINE void avg_block(const plane *p, const tern__window *w, float *y)
{
    tern__lanes sum = {0};
    EACH_IN_WINDOW(w) sum += tern__lanes_load(x_at(p, row, col, LANES), LANES);
    tern__lanes_store(y, sum / (float)w->divisor, LANES);
}

TERN__INLINE void avg_grad_block(const plane *p, const tern__window *w, const float *y)
{
    tern__lanes share = tern__lanes_load(y, LANES) / (float)w->divisor;
    EACH_IN_WINDOW(w) tern__lanes_put(x_at(p, row, col, LANES), share, LANES, true);
}

/* ---- one channel ---- */

TERN__INLINE void max_one(const plane *p, const tern__window *w, float *y, uint8_t *place)
{
    float best = -INFINITY;
    int32_t at = place_of(p, w, w->first[0], w->first[1]);
    EACH_IN_WINDOW(w)
    {
        float v = *x_at(p, row, col, 1);
        bool larger = (v > best) | (v != v);
        best = larger ? v : best;
        at = larger ? place_of(p, w, row, col) : at;
    }
    *y = best;
    if (place) *place = (uint8_t)at;
}

TERN__INLINE void max_grad_one(const plane *p, const tern__window *w, const float *y, const uint8_t *place)
{
    int64_t width = p->pool->kernel[1];
    *x_at(p, w->corner[0] + *place / width, w->corner[1] + *place % width, 1) += *y;
}

TERN__INLINE void avg_one(const plane *p, const tern__window *w, float *y)
{
    float sum = 0;
    EACH_IN_WINDOW(w) sum += *x_at(p, row, col, 1);
    *y = sum / (float)w->divisor;
}

TERN__INLINE void avg_grad_one(const plane *p, const tern__window *w, const float *y)
{
    float share = *y / (float)w->divisor;
    EACH_IN_WINDOW(w) * x_at(p, row, col, 1) += share;
}

/* ---- planes ---- */

/* A function that runs `window` on every window of a plane; it is compiled with its loops in one piece. */
#define PLANE_LOOP(name, width, window)                                                                      \
    TERN__SIMD static void name(const plane *p)                                                              \
    {                                                                                                        \
        for (int64_t r = 0; r < p->out[0]; r++)                                                              \
            for (int64_t c = 0; c < p->out[1]; c++) {                                                        \
                tern__window w = tern__window_of(p->pool, p->in, r, c);                                      \
                float *y = p->y + (r * p->out[1] + c) * (width);                                             \
                uint8_t *place = p->place ? p->place + (r * p->out[1] + c) * (width) : NULL;                 \
                (void)place;                                                                                 \
                window;                                                                                      \
            }                                                                                                \
    }
PLANE_LOOP(max_blocks, LANES, max_block(p, &w, y, place))
PLANE_LOOP(max_grad_blocks, LANES, max_grad_block(p, &w, y, place))
PLANE_LOOP(avg_blocks, LANES, avg_block(p, &w, y))
PLANE_LOOP(avg_grad_blocks, LANES, avg_grad_block(p, &w, y))
PLANE_LOOP(max_ones, 1, max_one(p, &w, y, place))
PLANE_LOOP(max_grad_ones, 1, max_grad_one(p, &w, y, place))
PLANE_LOOP(avg_ones, 1, avg_one(p, &w, y))
PLANE_LOOP(avg_grad_ones, 1, avg_grad_one(p, &w, y))

typedef void (*plane_fn)(const plane *p);

/* What a kernel does to a plane: of 16 channels, of one. */
typedef struct loops {
    plane_fn block, one;
    bool gradient;
} loops;

/* x and y of one layout, `place` (of y) or NULL. */
static int pool(const tern__call *call, const tern__view *x, const tern__view *y, const tern__view *place,
                const loops *l)
{
    if (!tern__is_dense(x, x) || !tern__is_dense(y, x) || (place && place->dtype != TERN_U8))
        return TERN_E_UNSUPPORTED;
    int width = x->layout == TERN__BLOCKED16 ? LANES : 1;
    plane first = {.pool = call->attr, .in = {x->shape[2], x->shape[3]}, .out = {y->shape[2], y->shape[3]}};
    int64_t planes = x->shape[0] * x->shape[1] / width;
    int64_t x_size = first.in[0] * first.in[1] * width, y_size = first.out[0] * first.out[1] * width;
    int threads = tern__loop_threads(call, planes * x_size);
    plane_fn fn = width == LANES ? l->block : l->one;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < planes; i++) {
        plane p = first;
        p.x = (float *)x->data + i * x_size;
        p.y = (float *)y->data + i * y_size;
        p.place = place ? (uint8_t *)place->data + i * y_size : NULL;
        if (l->gradient && !call->add[0]) memset(p.x, 0, (size_t)x_size * sizeof(*p.x));
        fn(&p);
    }
    return TERN_OK;
}

int tern__cpu_max_pool2d(const tern__call *call)
{
    static const loops l = {max_blocks, max_ones, false};
    return call->add[0] ? TERN_E_UNSUPPORTED : pool(call, call->in[0], call->out[0], call->out[1], &l);
}

int tern__cpu_max_pool2d_grad(const tern__call *call)
{
    static const loops l = {max_grad_blocks, max_grad_ones, true};
    return pool(call, call->out[0], call->in[0], call->in[1], &l);
}

int tern__cpu_avg_pool2d(const tern__call *call)
{
    static const loops l = {avg_blocks, avg_ones, false};
    return call->add[0] ? TERN_E_UNSUPPORTED : pool(call, call->in[0], call->out[0], NULL, &l);
}

int tern__cpu_avg_pool2d_grad(const tern__call *call)
{
    static const loops l = {avg_grad_blocks, avg_grad_ones, true};
    return pool(call, call->out[0], call->in[0], NULL, &l);
}
