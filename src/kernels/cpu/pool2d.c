/* pool2d.c - max and average pooling, 16 planes at a time, which lie side by side in the lanes.
 *
 * In the blocked layout the 16 channels of a block stand so. Of a plain tensor, whose images and channels are
 * one long row of planes, the next 16 are brought side by side, and the result is taken apart again: a strip
 * of rows at a time, so that the copies stay in the cache. Blocked tensors of 16 bits are copied so too, into
 * f32 (in a gradient whole planes, since they are rounded once); plain ones go through f32 as a whole.
 * Threads take planes, which do not overlap.
 *
 * Max pooling keeps the place of the maximum in its window, the first one of equals and the last NaN (as
 * PyTorch does), in one byte. Its gradient adds dy where the place says: in small windows of 16 planes by
 * going through all places, elsewhere one by one. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/widen.h"
#include "kernels/pool.h"

#include <math.h>

#define LANES  TERN__LANES
#define STRIP  98304 /* floats of x in a strip, about */
#define PLACES 256   /* that fit into a byte          */
#define FEW    16    /* places of a small window      */

/* Scratch buffers. */
enum { SPANS, COPIES };

typedef struct pooling pooling;
typedef struct block block;
typedef void (*block_fn)(const pooling *p, const block *b);

struct pooling {
    const tern__call *call;
    const tern__pool_attr *attr;
    const tern__view *x, *y, *place; /* or their gradients; place NULL: not wanted */
    block_fn fn;
    bool gradient; /* x is the result */
    int64_t in[2], out[2], planes;
    const tern__span *rows, *cols; /* of each row and column of y            */
    int64_t strip;                 /* rows of y that are copied at a time    */
    int64_t x_room, y_room;        /* floats of a strip's copies             */
    float *copies;                 /* of x, y and the places for each thread */
};

/* 16 planes side by side, or a strip of them: from row `x_row` of x and from row `y_row` of y on. */
struct block {
    float *x, *y;
    uint8_t *place;
    int64_t x_row, y_row, rows; /* of y */
};

typedef struct window {
    tern__span row, col;
} window;

TERN__INLINE float *x_at(const pooling *p, const block *b, const window *w, int64_t r, int64_t c)
{
    int64_t row = w->row.corner + r * p->attr->dilation[0], col = w->col.corner + c * p->attr->dilation[1];
    return b->x + ((row - b->x_row) * p->in[1] + col) * LANES;
}

TERN__INLINE int32_t place_of(const pooling *p, int64_t r, int64_t c)
{
    return (int32_t)(r * p->attr->kernel[1] + c);
}

TERN__INLINE float divisor(const window *w)
{
    return (float)(w->row.divisor * w->col.divisor);
}

#define EACH_PLACE(w)                                                                                        \
    for (int64_t r = (w)->row.first; r < (w)->row.last; r++)                                                 \
        for (int64_t c = (w)->col.first; c < (w)->col.last; c++)

/* ---- one window of 16 planes ---- */

/* Four lanes, which every target compares at once (see lanes.h). */
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
typedef uint8_t quad_bytes __attribute__((vector_size(4)));
enum { QUAD = 4, QUADS = LANES / QUAD };

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

TERN__INLINE void max_window(const pooling *p, const block *b, const window *w, float *y, uint8_t *place)
{
    maximum m[QUADS];
    for (int q = 0; q < QUADS; q++) {
        m[q].best = (quad){0} - INFINITY;
        m[q].place = (quad_mask){0} + place_of(p, w->row.first, w->col.first);
    }
    EACH_PLACE(w)
    for (int q = 0; q < QUADS; q++) take(&m[q], x_at(p, b, w, r, c) + q * QUAD, place_of(p, r, c));
    for (int q = 0; q < QUADS; q++) {
        quad_bytes bytes = __builtin_convertvector(m[q].place, quad_bytes);
        memcpy(y + q * QUAD, &m[q].best, sizeof(quad));
        if (place) memcpy(place + q * QUAD, &bytes, sizeof(bytes));
    }
}

TERN__INLINE void max_grad_window(const pooling *p, const block *b, const window *w, const float *y,
                                  const uint8_t *place)
{
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    bytes places;
    memcpy(&places, place, sizeof(places));
    tern__masks at = __builtin_convertvector(places, tern__masks);
    tern__lanes dy = tern__lanes_load(y, LANES);
    EACH_PLACE(w)
    {
        tern__masks other = at ^ place_of(p, r, c); /* 0 where it is here, else positive */
        tern__lanes_put(x_at(p, b, w, r, c), tern__lanes_where((other - 1) >> 31, dy), LANES, true);
    }
}

TERN__INLINE void avg_window(const pooling *p, const block *b, const window *w, float *y)
{
    tern__lanes sum = {0};
    EACH_PLACE(w) sum += tern__lanes_load(x_at(p, b, w, r, c), LANES);
    tern__lanes_store(y, sum / divisor(w), LANES);
}

TERN__INLINE void avg_grad_window(const pooling *p, const block *b, const window *w, const float *y)
{
    tern__lanes share = tern__lanes_load(y, LANES) / divisor(w);
    EACH_PLACE(w) tern__lanes_put(x_at(p, b, w, r, c), share, LANES, true);
}

/* ---- all windows of a block ---- */

/* A function that does `code` for every window; it is compiled with its loops in one piece. */
#define BLOCK_LOOP(name, code)                                                                               \
    TERN__SIMD static void name(const pooling *p, const block *b)                                            \
    {                                                                                                        \
        for (int64_t row = b->y_row; row < b->y_row + b->rows; row++)                                        \
            for (int64_t col = 0; col < p->out[1]; col++) {                                                  \
                window w = {p->rows[row], p->cols[col]};                                                     \
                int64_t at = ((row - b->y_row) * p->out[1] + col) * LANES;                                   \
                float *y = b->y + at;                                                                        \
                uint8_t *place = b->place ? b->place + at : NULL;                                            \
                (void)place;                                                                                 \
                code;                                                                                        \
            }                                                                                                \
    }
BLOCK_LOOP(max_block, max_window(p, b, &w, y, place))
BLOCK_LOOP(max_grad_block, max_grad_window(p, b, &w, y, place))
BLOCK_LOOP(avg_block, avg_window(p, b, &w, y))
BLOCK_LOOP(avg_grad_block, avg_grad_window(p, b, &w, y))

/* ---- side by side and apart ---- */

/* Four elements of each of four planes change places. */
TERN__INLINE void turn(quad v[QUAD])
{
    quad a = __builtin_shuffle(v[0], v[1], (quad_mask){0, 4, 1, 5});
    quad b = __builtin_shuffle(v[0], v[1], (quad_mask){2, 6, 3, 7});
    quad c = __builtin_shuffle(v[2], v[3], (quad_mask){0, 4, 1, 5});
    quad d = __builtin_shuffle(v[2], v[3], (quad_mask){2, 6, 3, 7});
    v[0] = __builtin_shuffle(a, c, (quad_mask){0, 1, 4, 5});
    v[1] = __builtin_shuffle(a, c, (quad_mask){2, 3, 6, 7});
    v[2] = __builtin_shuffle(b, d, (quad_mask){0, 1, 4, 5});
    v[3] = __builtin_shuffle(b, d, (quad_mask){2, 3, 6, 7});
}

/* to[i * 16 + l] = from[l * step + i] for i < n; of lanes that there are not, lane 0 takes the place. */
TERN__SIMD static void join(float *to, const float *from, int64_t step, int64_t n, int lanes)
{
    int64_t i = 0;
    for (; i + QUAD <= n; i += QUAD)
        for (int l = 0; l < LANES; l += QUAD) {
            quad v[QUAD];
            for (int k = 0; k < QUAD; k++)
                memcpy(&v[k], from + (l + k < lanes ? l + k : 0) * step + i, sizeof(quad));
            turn(v);
            for (int k = 0; k < QUAD; k++) memcpy(to + (i + k) * LANES + l, &v[k], sizeof(quad));
        }
    for (; i < n; i++)
        for (int l = 0; l < LANES; l++) to[i * LANES + l] = from[(l < lanes ? l : 0) * step + i];
}

/* The way back: to[l * step + i] = or += from[i * 16 + l]. */
TERN__SIMD static void part(float *to, const float *from, int64_t step, int64_t n, int lanes, bool add)
{
    for (int l = 0; l < lanes; l += QUAD) {
        int64_t i = 0;
        for (; i + QUAD <= n && l + QUAD <= lanes; i += QUAD) {
            quad v[QUAD], old;
            for (int k = 0; k < QUAD; k++) memcpy(&v[k], from + (i + k) * LANES + l, sizeof(quad));
            turn(v);
            for (int k = 0; k < QUAD; k++) {
                float *at = to + (l + k) * step + i;
                memcpy(&old, at, sizeof(old));
                if (add) v[k] += old;
                memcpy(at, &v[k], sizeof(quad));
            }
        }
        for (; i < n; i++)
            for (int k = l; k < TERN__MIN(lanes, l + QUAD); k++)
                to[k * step + i] = from[i * LANES + k] + (add ? to[k * step + i] : 0);
    }
}

static void part_bytes(uint8_t *to, const uint8_t *from, int64_t step, int64_t n, int lanes)
{
    for (int l = 0; l < lanes; l++)
        for (int64_t i = 0; i < n; i++) to[l * step + i] = from[i * LANES + l];
}

/* ---- the ways to go through planes ---- */

/* 16 planes of a tensor, from place `first` on: `size` places have each. */
typedef struct planes {
    const tern__view *view;
    int64_t plane, size, first;
    int lanes;
} planes;

/* Side by side in f32, or the way back: blocked ones of 16 bits stand so already. */
static void bring(float *to, const planes *from, int64_t n)
{
    int64_t at = from->plane * from->size + from->first * (tern__is_half(from->view) ? LANES : 1);
    if (tern__is_half(from->view))
        tern__stage_load(TERN__COMPUTE_F32, (tern__stage *)to, from->view->dtype, from->view->data, at, 1,
                         n * LANES);
    else
        join(to, (const float *)from->view->data + at, from->size, n, from->lanes);
}

static void take_back(const planes *to, const float *from, int64_t n, bool add)
{
    int64_t at = to->plane * to->size + to->first * (tern__is_half(to->view) ? LANES : 1);
    if (tern__is_half(to->view))
        tern__stage_store(TERN__COMPUTE_F32, (const tern__stage *)from, to->view->dtype, to->view->data, at,
                          1, n * LANES, add);
    else
        part((float *)to->view->data + at, from, to->size, n, to->lanes, add);
}

static int64_t x_size(const pooling *p)
{
    return p->in[0] * p->in[1];
}

static int64_t y_size(const pooling *p)
{
    return p->out[0] * p->out[1];
}

static uint8_t *places_at(const pooling *p, int64_t at)
{
    return p->place ? (uint8_t *)p->place->data + at : NULL;
}

static void clear(const pooling *p, float *x, int64_t count)
{
    if (!p->call->add[0]) memset(x, 0, (size_t)count * sizeof(*x));
}

/* Block `i` of the blocked layout. */
static void do_block(const pooling *p, int64_t i, int thread)
{
    (void)thread;
    int64_t from = i * x_size(p) * LANES, to = i * y_size(p) * LANES;
    block b = {(float *)p->x->data + from, (float *)p->y->data + to, places_at(p, to), 0, 0, p->out[0]};
    if (p->gradient) clear(p, b.x, x_size(p) * LANES);
    p->fn(p, &b);
}

/* Rows low to high - 1 of x: what the block sees. */
static void find_rows(const pooling *p, const block *b, int64_t *low, int64_t *high)
{
    *low = p->in[0];
    *high = 0;
    for (int64_t r = b->y_row; r < b->y_row + b->rows; r++) {
        const tern__span *s = &p->rows[r];
        if (s->first >= s->last) continue;
        *low = TERN__MIN(*low, s->corner + s->first * p->attr->dilation[0]);
        *high = TERN__MAX(*high, s->corner + (s->last - 1) * p->attr->dilation[0] + 1);
    }
    *low = TERN__MIN(*low, *high);
}

static void forward_strip(const pooling *p, block *b, int64_t plane, int lanes)
{
    int64_t low, high, first = b->y_row * p->out[1], n = b->rows * p->out[1];
    planes x = {p->x, plane, x_size(p), 0, lanes}, y = {p->y, plane, y_size(p), first, lanes};
    find_rows(p, b, &low, &high);
    b->x_row = low;
    x.first = low * p->in[1];
    bring(b->x, &x, (high - low) * p->in[1]);
    p->fn(p, b);
    take_back(&y, b->y, n, false);
    if (!b->place) return;
    if (p->x->layout == TERN__BLOCKED16)
        memcpy(places_at(p, plane * y.size + first * LANES), b->place, (size_t)(n * LANES));
    else
        part_bytes(places_at(p, plane * y.size + first), b->place, y.size, n, lanes);
}

/* The only strip stores all rows of dx; one of several adds to those that it sees. */
static void backward_strip(const pooling *p, block *b, int64_t plane, int lanes)
{
    bool only = b->rows == p->out[0];
    int64_t low = 0, high = p->in[0];
    if (!only) find_rows(p, b, &low, &high);
    planes x = {p->x, plane, x_size(p), low * p->in[1], lanes};
    planes y = {p->y, plane, y_size(p), b->y_row * p->out[1], lanes};
    b->x_row = low;
    bring(b->y, &y, b->rows * p->out[1]);
    if (p->place)
        b->place = places_at(p, plane * y.size + y.first * LANES); /* blocked: of these lanes only */
    memset(b->x, 0, (size_t)((high - low) * p->in[1] * LANES) * sizeof(*b->x));
    p->fn(p, b);
    take_back(&x, b->x, (high - low) * p->in[1], !only || p->call->add[0]);
}

/* Planes 16 i and those after it of a plain tensor. */
static void do_planes(const pooling *p, int64_t i, int thread)
{
    int64_t plane = i * LANES;
    int lanes = (int)TERN__MIN(LANES, p->planes - plane);
    float *room = p->copies + thread * (p->x_room + 2 * p->y_room);
    block b = {.x = room, .y = room + p->x_room};
    if (p->place) b.place = (uint8_t *)(room + p->x_room + p->y_room);
    if (p->gradient && p->strip < p->out[0])
        clear(p, (float *)p->x->data + plane * x_size(p), lanes * x_size(p));
    for (; b.y_row < p->out[0]; b.y_row += b.rows) {
        b.rows = TERN__MIN(p->strip, p->out[0] - b.y_row);
        if (p->gradient)
            backward_strip(p, &b, plane, lanes);
        else
            forward_strip(p, &b, plane, lanes);
    }
}

/* Adds each dy where its place says: `width` planes side by side, which are plane or block `i`. */
static void scatter(const pooling *p, int64_t i, int width)
{
    int64_t offset[PLACES], kernel = p->attr->kernel[1];
    float *x = (float *)p->x->data + i * x_size(p) * width;
    const float *y = (const float *)p->y->data + i * y_size(p) * width;
    const uint8_t *place = places_at(p, i * y_size(p) * width);
    clear(p, x, x_size(p) * width);
    for (int64_t k = 0; k < p->attr->kernel[0] * kernel; k++)
        offset[k] = k / kernel * p->attr->dilation[0] * p->in[1] + k % kernel * p->attr->dilation[1];
    for (int64_t row = 0; row < p->out[0]; row++)
        for (int64_t col = 0; col < p->out[1]; col++, y += width, place += width) {
            const tern__span *r = &p->rows[row], *c = &p->cols[col];
            if (r->first >= r->last || c->first >= c->last) continue;
            float *corner = x + (r->corner * p->in[1] + c->corner) * width;
            for (int l = 0; l < width; l++) corner[offset[place[l]] * width + l] += y[l];
        }
}

static void scatter_block(const pooling *p, int64_t i, int thread)
{
    (void)thread;
    scatter(p, i, LANES);
}

static void scatter_plane(const pooling *p, int64_t i, int thread)
{
    (void)thread;
    scatter(p, i, 1);
}

/* ---- kernels ---- */

static void *scratch(const tern__call *call, int which, int64_t bytes)
{
    const char *name = tern__kernel_name(call->kernel);
    void *data = tern__device_scratch(call->device, TERN__SCRATCH_OPERAND + which, (size_t)bytes);
    if (!data)
        tern__error_set(call->err, name, TERN_E_MEMORY, "%s: out of memory: %lld bytes of scratch", name,
                        (long long)bytes);
    return data;
}

static int find_spans(pooling *p)
{
    int64_t rows = p->out[0], cols = p->out[1];
    tern__span *spans = scratch(p->call, SPANS, (rows + cols) * (int64_t)sizeof(*spans));
    if (!spans) return TERN_E_MEMORY;
    for (int64_t r = 0; r < rows; r++) spans[r] = tern__span_of(p->attr, 0, p->in[0], r);
    for (int64_t c = 0; c < cols; c++) spans[rows + c] = tern__span_of(p->attr, 1, p->in[1], c);
    p->rows = spans;
    p->cols = spans + rows;
    return TERN_OK;
}

static int open_copies(pooling *p, int threads)
{
    const tern__pool_attr *a = p->attr;
    int64_t reach = (a->kernel[0] - 1) * a->dilation[0] + 1, row = p->in[1] * LANES;
    bool whole = p->gradient && tern__is_half(p->x);
    p->strip = TERN__MIN(p->out[0], TERN__MAX(STRIP / row - reach, 0) / a->stride[0] + 1);
    if (whole) p->strip = p->out[0];
    bool only = p->strip == p->out[0];
    p->x_room = row * (only ? p->in[0] : TERN__MIN(p->in[0], (p->strip - 1) * a->stride[0] + reach));
    p->y_room = p->strip * p->out[1] * LANES;
    p->copies = scratch(p->call, COPIES, threads * (p->x_room + 2 * p->y_room) * (int64_t)sizeof(float));
    return p->copies ? TERN_OK : TERN_E_MEMORY;
}

typedef void (*item_fn)(const pooling *p, int64_t i, int thread);

static int run(pooling *p)
{
    const tern__call *call = p->call;
    bool blocked = p->x->layout == TERN__BLOCKED16, few = p->attr->kernel[0] * p->attr->kernel[1] <= FEW;
    bool scattered = call->kernel == TERN__MAX_POOL2D_GRAD && !(blocked && few),
         copied = !scattered && (!blocked || tern__is_half(p->x));
    int64_t items = p->planes / (blocked ? LANES : 1);
    item_fn fn = scattered ? (blocked ? scatter_block : scatter_plane) : blocked ? do_block : do_planes;
    if (copied) fn = do_planes;
    if (copied) items = (p->planes + LANES - 1) / LANES;
    int threads = tern__loop_threads(call, p->planes * x_size(p));
    if (find_spans(p) || (copied && open_copies(p, threads))) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = items * t / threads; i < items * (t + 1) / threads; i++) fn(p, i, t);
    return TERN_OK;
}

/* x and y of one layout, `place` (of y) or NULL. */
static int pool(const tern__call *call, const tern__view *x, const tern__view *y, const tern__view *place,
                block_fn fn, bool gradient)
{
    pooling p = {
        .call = call, .attr = call->attr, .x = x, .y = y, .place = place, .fn = fn, .gradient = gradient};
    bool dense =
        x->dtype == y->dtype && x->layout == y->layout && tern__view_is_dense(x) && tern__view_is_dense(y);
    if (!dense || x->dtype == TERN_F64 || (place && place->dtype != TERN_U8) || (!gradient && call->add[0]))
        return TERN_E_UNSUPPORTED;
    p.planes = x->shape[0] * x->shape[1];
    for (int d = 0; d < 2; d++) {
        p.in[d] = x->shape[2 + d];
        p.out[d] = y->shape[2 + d];
    }
    return run(&p);
}

/* Large windows' gradients add up one by one in their place. */
static bool needs_f32(const tern__call *call)
{
    const tern__pool_attr *attr = call->attr;
    bool scattered = call->kernel == TERN__MAX_POOL2D_GRAD && attr->kernel[0] * attr->kernel[1] > FEW;
    return tern__is_half(call->in[0]) && (call->in[0]->layout == TERN__PLAIN || scattered);
}

int tern__cpu_max_pool2d(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_max_pool2d);
    return pool(call, call->in[0], call->out[0], call->out[1], max_block, false);
}

int tern__cpu_max_pool2d_grad(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_max_pool2d_grad);
    return pool(call, call->out[0], call->in[0], call->in[1], max_grad_block, true);
}

int tern__cpu_avg_pool2d(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_avg_pool2d);
    return pool(call, call->in[0], call->out[0], NULL, avg_block, false);
}

int tern__cpu_avg_pool2d_grad(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_avg_pool2d_grad);
    return pool(call, call->out[0], call->in[0], NULL, avg_grad_block, true);
}
