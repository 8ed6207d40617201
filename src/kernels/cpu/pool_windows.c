/* pool_windows.c - max and average pooling and their gradients, window by window of 16 planes. */
#include "kernels/cpu/width.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool_windows.h"

#include <math.h>

#define LANES TERN__LANES
#define PARTS TERN__PARTS

typedef tern__pool_shape shape;
typedef tern__pool_block block;

typedef struct window {
    tern__pool_span d, r, c;
    float *row, *corner; /* first lanes of the row's start and of the window, possibly outside of x */
    int64_t step[TERN__SPACE];
} window;

/* What all windows of a row share. */
TERN__INLINE window row_of(const shape *s, const block *b, int64_t slice, int64_t row)
{
    const int64_t *dilation = s->attr->dilation, width = s->in.size[2] * TERN__BLOCK;
    window w = {.d = s->spans[0][slice], .r = s->spans[1][row]};
    w.row = b->x + ((w.d.corner - b->in.slice) * b->in.rows + w.r.corner - b->in.row) * width;
    w.step[0] = dilation[0] * b->in.rows * width;
    w.step[1] = dilation[1] * width;
    w.step[2] = dilation[2] * TERN__BLOCK;
    return w;
}

TERN__INLINE void move_to(window *w, const tern__pool_span *col)
{
    w->c = *col;
    w->corner = w->row + col->corner * TERN__BLOCK;
}

TERN__INLINE float *x_at(const window *w, int64_t d, int64_t r, int64_t c)
{
    return w->corner + d * w->step[0] + r * w->step[1] + c * w->step[2];
}

TERN__INLINE int32_t place_of(const shape *s, int64_t d, int64_t r, int64_t c)
{
    return (int32_t)tern__pool_place(s->attr, d, r, c);
}

TERN__INLINE float divisor(const window *w)
{
    return (float)(w->d.divisor * w->r.divisor * w->c.divisor);
}

#define EACH_PLACE(w)                                                                                        \
    for (int64_t d = (w)->d.first; d < (w)->d.last; d++)                                                     \
        for (int64_t r = (w)->r.first; r < (w)->r.last; r++)                                                 \
            for (int64_t c = (w)->c.first; c < (w)->c.last; c++)

/* ---- one window of 16 planes ---- */

/* Four lanes, which every target compares in one instruction (see lanes.h). */
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
typedef uint8_t quad_bytes __attribute__((vector_size(4)));
enum { QUAD = 4, QUADS = TERN__BLOCK / QUAD };

#define EACH_QUAD(q) _Pragma("GCC unroll 4") for (int q = 0; q < QUADS; q++)

typedef struct maximum {
    quad best;
    quad_mask place;
} maximum;

TERN__INLINE void maximum_take(maximum *m, const float *x, int32_t place)
{
    quad v;
    memcpy(&v, x, sizeof(v));
    quad_mask larger = (v > m->best) | (v != v);
    m->best = (quad)(((quad_mask)v & larger) | ((quad_mask)m->best & ~larger));
    m->place = (place & larger) | (m->place & ~larger);
}

TERN__INLINE void max_window(const shape *s, const window *w, float *y, uint8_t *place)
{
    maximum m[QUADS];
    int32_t first = place_of(s, w->d.first, w->r.first, w->c.first);
    EACH_QUAD(q) m[q] = (maximum){(quad){0} - INFINITY, (quad_mask){0} + first};
    EACH_PLACE(w)
    EACH_QUAD(q) maximum_take(&m[q], x_at(w, d, r, c) + q * QUAD, place_of(s, d, r, c));
    EACH_QUAD(q)
    {
        quad_bytes bytes = __builtin_convertvector(m[q].place, quad_bytes);
        memcpy(y + q * QUAD, &m[q].best, sizeof(quad));
        if (place) memcpy(place + q * QUAD, &bytes, sizeof(bytes));
    }
}

TERN__INLINE void max_grad_window(const shape *s, const window *w, const float *y, const uint8_t *place)
{
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    tern__masks at[PARTS];
    tern__lanes dy[PARTS];
    TERN__EACH_PART(p)
    {
        bytes places;
        memcpy(&places, place + p * LANES, sizeof(places));
        at[p] = (tern__masks)tern__words_of(__builtin_convertvector(places, tern__halves));
        dy[p] = tern__lanes_load(y + p * LANES, LANES);
    }
    EACH_PLACE(w)
    TERN__EACH_PART(p)
    {
        tern__masks other = at[p] ^ place_of(s, d, r, c); /* 0 if the maximum is here, else positive */
        tern__lanes here = tern__lanes_where((other - 1) >> 31, dy[p]);
        tern__lanes_put(x_at(w, d, r, c) + p * LANES, here, LANES, true);
    }
}

TERN__INLINE void avg_window(const window *w, float *y)
{
    tern__lanes sum[PARTS] = {0};
    EACH_PLACE(w)
    TERN__EACH_PART(p) sum[p] += tern__lanes_load(x_at(w, d, r, c) + p * LANES, LANES);
    TERN__EACH_PART(p) tern__lanes_store(y + p * LANES, sum[p] / divisor(w), LANES);
}

TERN__INLINE void avg_grad_window(const window *w, const float *y)
{
    tern__lanes share[PARTS];
    TERN__EACH_PART(p) share[p] = tern__lanes_load(y + p * LANES, LANES) / divisor(w);
    EACH_PLACE(w)
    TERN__EACH_PART(p) tern__lanes_put(x_at(w, d, r, c) + p * LANES, share[p], LANES, true);
}

/* ---- all windows of a block ---- */

/* Defines a function that runs `code` for every window; it is compiled with its loops in one piece. */
#define BLOCK_LOOP(name, code)                                                                               \
    TERN__SIMD static void name(const shape *s, const block *b)                                              \
    {                                                                                                        \
        const tern__pool_box *o = &b->out;                                                                   \
        int64_t at = 0;                                                                                      \
        for (int64_t slice = o->slice; slice < o->slice + o->slices; slice++)                                \
            for (int64_t row = o->row; row < o->row + o->rows; row++) {                                      \
                window w = row_of(s, b, slice, row);                                                         \
                for (int64_t col = 0; col < s->out.size[2]; col++, at += TERN__BLOCK) {                      \
                    float *y = b->y + at;                                                                    \
                    uint8_t *place = b->place ? b->place + at : NULL;                                        \
                    (void)place;                                                                             \
                    move_to(&w, &s->spans[2][col]);                                                          \
                    code;                                                                                    \
                }                                                                                            \
            }                                                                                                \
    }
BLOCK_LOOP(max_block, max_window(s, &w, y, place))
BLOCK_LOOP(max_grad_block, max_grad_window(s, &w, y, place))
BLOCK_LOOP(avg_block, avg_window(&w, y))
BLOCK_LOOP(avg_grad_block, avg_grad_window(&w, y))

const tern__pool_fns TERN__OF_WIDTH(tern__pool) = {
    .max = max_block, .max_grad = max_grad_block, .avg = avg_block, .avg_grad = avg_grad_block};
