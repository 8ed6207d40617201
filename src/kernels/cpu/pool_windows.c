/* pool_windows.c - window after window of 16 planes: max and average pooling and their gradients. */
#include "kernels/cpu/width.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool_windows.h"

#include <math.h>

#define LANES TERN__LANES
#define PARTS TERN__PARTS

typedef tern__pool_shape shape;
typedef tern__pool_block block;

typedef struct window {
    tern__span d, r, c;
    float *row, *corner; /* first lanes of the row's beginning and of the window, perhaps outside of x */
    int64_t step[TERN__SPACE];
} window;

/* What all windows of a row have. */
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

TERN__INLINE void move_to(window *w, const tern__span *col)
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

#define EACH_PART(p) _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; p++)

/* ---- one window of 16 planes ---- */

/* Lanes that are compared at once: four, which every target can, or a register of AVX2, whose lanes older
 * CPUs compare one by one (see lanes.h). */
#ifdef TERN__WIDE
enum { GROUP = 4 };
#else
enum { GROUP = LANES };
#endif
enum { GROUPS = TERN__BLOCK / GROUP };
typedef float group __attribute__((vector_size(4 * GROUP)));
typedef int32_t group_mask __attribute__((vector_size(4 * GROUP)));
typedef uint16_t group_halves __attribute__((vector_size(2 * GROUP)));
typedef uint8_t group_bytes __attribute__((vector_size(GROUP)));

#define EACH_GROUP(g) _Pragma("GCC unroll 4") for (int g = 0; g < GROUPS; g++)

typedef struct maximum {
    group best;
    group_mask place;
} maximum;

TERN__INLINE void take(maximum *m, const float *x, int32_t place)
{
    group v;
    memcpy(&v, x, sizeof(v));
    group_mask larger = (v > m->best) | (v != v);
    m->best = (group)(((group_mask)v & larger) | ((group_mask)m->best & ~larger));
    m->place = (place & larger) | (m->place & ~larger);
}

/* Where there is no instruction for it, gcc goes element by element unless it is by halves. */
TERN__INLINE group_bytes bytes_of(group_mask place)
{
#ifdef TERN__WIDE
    return __builtin_convertvector(place, group_bytes);
#else
    return __builtin_convertvector(__builtin_convertvector(place, group_halves), group_bytes);
#endif
}

TERN__INLINE void max_window(const shape *s, const window *w, float *y, uint8_t *place)
{
    maximum m[GROUPS];
    int32_t first = place_of(s, w->d.first, w->r.first, w->c.first); /* from which on they count */
    EACH_GROUP(g) m[g] = (maximum){(group){0} - INFINITY, {0}};
    EACH_PLACE(w)
    EACH_GROUP(g) take(&m[g], x_at(w, d, r, c) + g * GROUP, place_of(s, d, r, c) - first);
    EACH_GROUP(g)
    {
        group_bytes bytes = bytes_of(m[g].place + first);
        memcpy(y + g * GROUP, &m[g].best, sizeof(group));
        if (place) memcpy(place + g * GROUP, &bytes, sizeof(bytes));
    }
}

TERN__INLINE void max_grad_window(const shape *s, const window *w, const float *y, const uint8_t *place)
{
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    tern__masks at[PARTS];
    tern__lanes dy[PARTS];
    EACH_PART(p)
    {
        bytes places;
        memcpy(&places, place + p * LANES, sizeof(places));
        at[p] = (tern__masks)tern__words_of(__builtin_convertvector(places, tern__halves));
        dy[p] = tern__lanes_load(y + p * LANES, LANES);
    }
    EACH_PLACE(w)
    EACH_PART(p)
    {
        tern__masks other = at[p] ^ place_of(s, d, r, c); /* 0 where it is here, else positive */
        tern__lanes here = tern__lanes_where((other - 1) >> 31, dy[p]);
        tern__lanes_put(x_at(w, d, r, c) + p * LANES, here, LANES, true);
    }
}

TERN__INLINE void avg_window(const window *w, float *y)
{
    tern__lanes sum[PARTS] = {0};
    EACH_PLACE(w)
    EACH_PART(p) sum[p] += tern__lanes_load(x_at(w, d, r, c) + p * LANES, LANES);
    EACH_PART(p) tern__lanes_store(y + p * LANES, sum[p] / divisor(w), LANES);
}

TERN__INLINE void avg_grad_window(const window *w, const float *y)
{
    tern__lanes share[PARTS];
    EACH_PART(p) share[p] = tern__lanes_load(y + p * LANES, LANES) / divisor(w);
    EACH_PLACE(w)
    EACH_PART(p) tern__lanes_put(x_at(w, d, r, c) + p * LANES, share[p], LANES, true);
}

/* ---- all windows of a block ---- */

/* A function that does `code` for every window; it is compiled with its loops in one piece. */
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
