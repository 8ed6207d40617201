/* pool.c - max and average pooling over slices, rows and columns, for 16 planes at a time, which are
 * interleaved in the lanes. Without a depth there is one slice.
 *
 * In the blocked layout the 16 channels of a block are interleaved already. A plain tensor, whose images
 * and channels are one long row of planes, is processed 16 planes at a time: they are interleaved, and the
 * result is separated again, a strip of rows at a time, so that the copies stay in the cache. Blocked
 * 16-bit tensors are copied to f32 in the same way; plain ones are widened as a whole.
 *
 * The unit of computation is a box of y, some slices and rows. Threads take planes, and parts of planes if
 * these are few. In a gradient boxes must not overlap in dx. If windows do not overlap, each box owns the
 * range from its first window to the next box's, and stores it whatever was there. Otherwise one thread
 * takes the whole plane, clears it and adds; in 16 bits, which are rounded once, a plane is then one box.
 *
 * Max pooling stores the position of the maximum in its window, of equal values the first and of NaNs the
 * last (as PyTorch), in one byte. Its gradient adds dy at that position: for small windows of 16 planes by
 * going over all positions, otherwise one by one. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/planes.h"
#include "kernels/cpu/pool_windows.h"
#include "kernels/cpu/widen.h"

#define STRIP  98304 /* floats of x in a strip, about */
#define PLACES 256   /* positions that fit into a byte */
#define FEW    16    /* positions of a small window */

/* Scratch buffers. */
enum { SPANS, COPIES };

typedef tern__pool_box box;
typedef tern__pool_block block;

typedef struct pooling {
    const tern__call *call;
    const tern__pool_attr *attr;
    const tern__view *x, *y, *place; /* or their gradients; place NULL: not wanted */
    tern__pool_fn fn;
    bool gradient; /* x is the result */
    tern__space in, out;
    int64_t planes;
    const tern__pool_span *spans[TERN__SPACE]; /* of each slice, row and column of y */
    int cut;                                   /* the axis along which a plane is divided */
    int64_t parts;
    int64_t slices, rows;   /* of y, copied at a time */
    bool stores;            /* gradient: each box owns its part of x */
    int64_t x_room, y_room; /* floats of a strip's copies */
    float *copies;          /* of x, y and the places, for each thread */
} pooling;

/* ---- boxes ---- */

static int64_t reach_of(const pooling *p, int axis)
{
    return (p->attr->kernel[axis] - 1) * p->attr->dilation[axis] + 1;
}

/* Whether windows along this axis do not overlap. */
static bool is_disjoint(const pooling *p, int axis)
{
    return reach_of(p, axis) <= p->attr->stride[axis];
}

/* Maps y's elements first .. first + n - 1 along an axis to x's low .. high - 1: those that are read, or,
 * in a gradient whose boxes own theirs, those up to the next box. */
static void find_range(const pooling *p, int axis, int64_t first, int64_t n, int64_t *low, int64_t *high)
{
    int64_t in = p->in.size[axis], end = first + n;
    const tern__pool_span *spans = p->spans[axis];
    if (p->gradient && p->stores) {
        *low = first ? TERN__MIN(spans[first].corner, in) : 0;
        *high = end < p->out.size[axis] ? TERN__MIN(spans[end].corner, in) : in;
        return;
    }
    *low = in;
    *high = 0;
    for (int64_t i = first; i < end; i++) {
        const tern__pool_span *s = &spans[i];
        if (s->first >= s->last) continue;
        *low = TERN__MIN(*low, s->corner + s->first * p->attr->dilation[axis]);
        *high = TERN__MAX(*high, s->corner + (s->last - 1) * p->attr->dilation[axis] + 1);
    }
    *low = TERN__MIN(*low, *high);
}

static box box_of_x(const pooling *p, const box *y)
{
    box x;
    int64_t slices, rows;
    find_range(p, 0, y->slice, y->slices, &x.slice, &slices);
    find_range(p, 1, y->row, y->rows, &x.row, &rows);
    x.slices = slices - x.slice;
    x.rows = rows - x.row;
    return x;
}

/* A whole plane of x, or of y. */
static box whole(const tern__space *space)
{
    return (box){0, space->size[0], 0, space->size[1]};
}

/* Part `i` of a plane of y. */
static box pool_part_of(const pooling *p, int64_t i)
{
    box b = whole(&p->out);
    int64_t n = p->out.size[p->cut], first = n * i / p->parts, count = n * (i + 1) / p->parts - first;
    if (p->cut == 0) {
        b.slice = first;
        b.slices = count;
    } else {
        b.row = first;
        b.rows = count;
    }
    return b;
}

/* The index of its first element within the plane. */
static int64_t pool_start_of(const box *b, const tern__space *space)
{
    return (b->slice * space->size[1] + b->row) * space->size[2];
}

/* ---- going over planes ---- */

static uint8_t *places_at(const pooling *p, int64_t at)
{
    return p->place ? (uint8_t *)p->place->data + at : NULL;
}

static void do_windows(const pooling *p, const block *b)
{
    tern__pool_shape shape = {p->attr, p->in, p->out, {p->spans[0], p->spans[1], p->spans[2]}};
    p->fn(&shape, b);
}

/* Clears a box of `width` interleaved planes of x. */
static void pool_clear(const pooling *p, float *x, const box *b, int width)
{
    int64_t row = p->in.size[2] * width;
    for (int64_t s = b->slice; s < b->slice + b->slices && !p->call->add[0]; s++)
        memset(x + (s * p->in.size[1] + b->row) * row, 0, (size_t)(b->rows * row) * sizeof(*x));
}

/* Processes a part of block `i` of the blocked layout. */
static void do_block(const pooling *p, int64_t i, int64_t part, int thread)
{
    (void)thread;
    block b = {.in = whole(&p->in), .out = pool_part_of(p, part)};
    int64_t from = i * p->in.count * TERN__BLOCK,
            to = (i * p->out.count + pool_start_of(&b.out, &p->out)) * TERN__BLOCK;
    b.x = (float *)p->x->data + from;
    b.y = (float *)p->y->data + to;
    b.place = places_at(p, to);
    box own = p->stores ? box_of_x(p, &b.out) : b.in;
    if (p->gradient) pool_clear(p, b.x, &own, TERN__BLOCK);
    do_windows(p, &b);
}

/* Copies between a box's copy and the tensor, slice by slice. */
static void bring(const pooling *p, float *to, const tern__planes *from, const box *b)
{
    int64_t n = b->rows * p->in.size[2], first = pool_start_of(b, &p->in);
    for (int64_t s = 0; s < b->slices; s++)
        tern__planes_join(to + s * n * TERN__BLOCK, from, first + s * p->in.size[1] * p->in.size[2], n);
}

static void take_back(const pooling *p, const tern__planes *to, const float *from, const box *b, bool add)
{
    int64_t n = b->rows * p->in.size[2], first = pool_start_of(b, &p->in);
    for (int64_t s = 0; s < b->slices; s++)
        tern__planes_part(to, from + s * n * TERN__BLOCK, first + s * p->in.size[1] * p->in.size[2], n, add);
}

static void forward_strip(const pooling *p, block *b, int64_t plane, int lanes)
{
    tern__planes x = {p->x, plane, p->in.count, lanes}, y = {p->y, plane, p->out.count, lanes};
    int64_t first = pool_start_of(&b->out, &p->out), n = b->out.slices * b->out.rows * p->out.size[2];
    b->in = box_of_x(p, &b->out);
    bring(p, b->x, &x, &b->in);
    do_windows(p, b);
    tern__planes_part(&y, b->y, first, n, false);
    tern__planes place = {p->place, plane, p->out.count, lanes};
    if (b->place) tern__planes_part_bytes(&place, b->place, first, n);
}

/* The places of blocked planes are read in place, the others from a copy. */
static void backward_strip(const pooling *p, block *b, int64_t plane, int lanes)
{
    tern__planes x = {p->x, plane, p->in.count, lanes}, y = {p->y, plane, p->out.count, lanes};
    int64_t first = pool_start_of(&b->out, &p->out), n = b->out.slices * b->out.rows * p->out.size[2];
    b->in = box_of_x(p, &b->out);
    tern__planes_join(b->y, &y, first, n);
    b->place = places_at(p, plane * p->out.count + first * TERN__BLOCK);
    memset(b->x, 0, (size_t)(b->in.slices * b->in.rows * p->in.size[2] * TERN__BLOCK) * sizeof(*b->x));
    do_windows(p, b);
    take_back(p, &x, b->x, &b->in, !p->stores || p->call->add[0]);
}

/* Processes a part of the 16 planes from 16 i on, strip by strip. */
static void do_planes(const pooling *p, int64_t i, int64_t part, int thread)
{
    int64_t plane = i * TERN__BLOCK;
    int lanes = (int)TERN__MIN(TERN__BLOCK, p->planes - plane);
    float *room = p->copies + thread * (p->x_room + 2 * p->y_room);
    block b = {.x = room, .y = room + p->x_room};
    box all = pool_part_of(p, part), plane_of_x = whole(&p->in);
    if (p->place) b.place = (uint8_t *)(room + p->x_room + p->y_room);
    for (int l = 0; p->gradient && !p->stores && l < lanes; l++)
        pool_clear(p, (float *)p->x->data + (plane + l) * p->in.count, &plane_of_x, 1);
    for (int64_t s = 0; s < all.slices; s += p->slices)
        for (int64_t r = 0; r < all.rows; r += p->rows) {
            b.out = (box){all.slice + s, TERN__MIN(p->slices, all.slices - s), all.row + r,
                          TERN__MIN(p->rows, all.rows - r)};
            if (p->gradient)
                backward_strip(p, &b, plane, lanes);
            else
                forward_strip(p, &b, plane, lanes);
        }
}

/* The offset of each kernel position from the window's corner. */
static void find_offsets(const pooling *p, int64_t offset[PLACES])
{
    const tern__pool_attr *a = p->attr;
    int64_t width = p->in.size[2], slice = p->in.size[1] * width, k = 0;
    for (int64_t d = 0; d < a->kernel[0]; d++)
        for (int64_t r = 0; r < a->kernel[1]; r++)
            for (int64_t c = 0; c < a->kernel[2]; c++)
                offset[k++] = d * a->dilation[0] * slice + r * a->dilation[1] * width + c * a->dilation[2];
}

/* Adds each dy of a row at its place, for `width` interleaved planes, if the row's windows touch x. */
static void scatter_row(const pooling *p, const int64_t *offset, int64_t row, float *x, const float *y,
                        const uint8_t *place, int width)
{
    const tern__pool_span *d = &p->spans[0][row / p->out.size[1]], *r = &p->spans[1][row % p->out.size[1]];
    if (d->first >= d->last || r->first >= r->last) return;
    int64_t start = (d->corner * p->in.size[1] + r->corner) * p->in.size[2];
    for (int64_t col = 0; col < p->out.size[2]; col++, y += width, place += width) {
        const tern__pool_span *c = &p->spans[2][col];
        if (c->first >= c->last) continue;
        float *corner = x + (start + c->corner) * width;
        for (int l = 0; l < width; l++) corner[offset[place[l]] * width + l] += y[l];
    }
}

/* Scatters `width` interleaved planes: plane or block `i`. */
static void scatter(const pooling *p, int64_t i, int width)
{
    int64_t offset[PLACES], rows = p->out.size[0] * p->out.size[1], row_size = p->out.size[2] * width;
    int64_t at = i * p->out.count * width;
    float *x = (float *)p->x->data + i * p->in.count * width;
    box all = whole(&p->in);
    pool_clear(p, x, &all, width);
    find_offsets(p, offset);
    for (int64_t row = 0; row < rows; row++, at += row_size)
        scatter_row(p, offset, row, x, (const float *)p->y->data + at, places_at(p, at), width);
}

static void scatter_block(const pooling *p, int64_t i, int64_t part, int thread)
{
    (void)part;
    (void)thread;
    scatter(p, i, TERN__BLOCK);
}

static void scatter_plane(const pooling *p, int64_t i, int64_t part, int thread)
{
    (void)part;
    (void)thread;
    scatter(p, i, 1);
}

/* ---- kernels ---- */

static int find_spans(pooling *p)
{
    const int64_t *out = p->out.size;
    tern__pool_span *spans = tern__loop_scratch_of(p->call, TERN__SCRATCH_OPERAND + SPANS,
                                                   (size_t)(out[0] + out[1] + out[2]) * sizeof(*spans));
    if (!spans) return TERN_E_MEMORY;
    for (int axis = 0; axis < TERN__SPACE; axis++) {
        p->spans[axis] = spans;
        for (int64_t i = 0; i < out[axis]; i++) *spans++ = tern__span_of(p->attr, axis, p->in.size[axis], i);
    }
    return TERN_OK;
}

/* The most elements of x that n elements of y read or own along an axis. */
static int64_t pool_room_of(const pooling *p, int axis, int64_t n)
{
    if (n == p->out.size[axis]) return p->in.size[axis];
    return TERN__MIN(p->in.size[axis], n * p->attr->stride[axis] + reach_of(p, axis));
}

/* Chooses a strip: a whole plane if it is small, which then owns its x in any case; otherwise rows of one
 * slice. */
static void find_strip(pooling *p)
{
    int64_t row = p->in.size[2] * TERN__BLOCK, stride = p->attr->stride[1];
    p->slices = p->out.size[0];
    p->rows = p->out.size[1];
    bool one = p->gradient && !p->stores && tern__view_is_half(p->x);
    if (p->parts == 1 && (one || p->in.size[0] * p->in.size[1] * row <= STRIP)) {
        p->stores = true;
        return;
    }
    p->slices = 1;
    int64_t rows = STRIP / (row * TERN__MIN(p->in.size[0], reach_of(p, 0)));
    p->rows = TERN__MIN(p->rows, TERN__MAX(rows - reach_of(p, 1), 0) / stride + 1);
}

static int open_copies(pooling *p, int threads)
{
    find_strip(p);
    p->x_room = pool_room_of(p, 0, p->slices) * pool_room_of(p, 1, p->rows) * p->in.size[2] * TERN__BLOCK;
    p->y_room = p->slices * p->rows * p->out.size[2] * TERN__BLOCK;
    p->copies = tern__loop_scratch_of(p->call, TERN__SCRATCH_OPERAND + COPIES,
                                      (size_t)(threads * (p->x_room + 2 * p->y_room)) * sizeof(*p->copies));
    return p->copies ? TERN_OK : TERN_E_MEMORY;
}

/* Parts for all threads; in a gradient also so many that what was cleared is still in the cache when it is
 * added to. */
static int64_t pool_parts_of(const pooling *p, int64_t items, int threads)
{
    int64_t parts = threads > 1 ? (4 * threads + items - 1) / items : 1;
    if (p->gradient && !p->stores) return 1;
    if (p->gradient) parts = TERN__MAX(parts, p->in.count * TERN__BLOCK / STRIP);
    return TERN__MAX(1, TERN__MIN(parts, p->out.size[p->cut]));
}

typedef void (*item_fn)(const pooling *p, int64_t i, int64_t part, int thread);

static int pool_run(pooling *p)
{
    const tern__call *call = p->call;
    bool blocked = p->x->layout == TERN__BLOCKED16, few = tern__pool_places(p->attr) <= FEW;
    bool scattered = call->kernel == TERN__MAX_POOL_GRAD && !(blocked && few),
         copied = !scattered && (!blocked || tern__view_is_half(p->x));
    int64_t items = p->planes / (blocked ? TERN__BLOCK : 1);
    item_fn fn = scattered ? (blocked ? scatter_block : scatter_plane) : blocked ? do_block : do_planes;
    if (copied) fn = do_planes;
    if (copied) items = (p->planes + TERN__BLOCK - 1) / TERN__BLOCK;
    int threads = tern__loop_threads(call, p->planes * p->in.count);
    p->cut = p->out.size[0] > 1 ? 0 : 1;
    p->stores = is_disjoint(p, 0) && is_disjoint(p, 1);
    p->parts = scattered ? 1 : pool_parts_of(p, items, threads);
    if (find_spans(p) || (copied && open_copies(p, threads))) return TERN_E_MEMORY;
    items *= p->parts;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = items * t / threads; i < items * (t + 1) / threads; i++)
            fn(p, i / p->parts, i % p->parts, t);
    return TERN_OK;
}

/* Pools x and y of one layout; `place` (of y) or NULL. */
static int pool(const tern__call *call, const tern__view *x, const tern__view *y, const tern__view *place,
                tern__pool_fn fn, bool gradient)
{
    pooling p = {
        .call = call, .attr = call->attr, .x = x, .y = y, .place = place, .fn = fn, .gradient = gradient};
    bool dense =
        x->dtype == y->dtype && x->layout == y->layout && tern__view_is_dense(x) && tern__view_is_dense(y);
    if (!dense || (place && place->dtype != TERN_U8) || (!gradient && call->add[0]))
        return TERN_E_UNSUPPORTED;
    p.planes = x->shape[0] * x->shape[1];
    p.in = tern__space_of(x);
    p.out = tern__space_of(y);
    return pool_run(&p);
}

/* Whether a 16-bit call must be widened: gradients of large windows are added one by one in place. */
static bool needs_f32(const tern__call *call)
{
    bool scattered = call->kernel == TERN__MAX_POOL_GRAD && tern__pool_places(call->attr) > FEW;
    return tern__view_is_half(call->in[0]) && (call->in[0]->layout == TERN__PLAIN || scattered);
}

int tern__cpu_max_pool(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_pool(call);
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_max_pool);
    return pool(call, call->in[0], call->out[0], call->out[1], TERN__BY_WIDTH(tern__pool)->max, false);
}

int tern__cpu_max_pool_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_pool(call);
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_max_pool_grad);
    return pool(call, call->out[0], call->in[0], call->in[1], TERN__BY_WIDTH(tern__pool)->max_grad, true);
}

int tern__cpu_avg_pool(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_pool(call);
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_avg_pool);
    return pool(call, call->in[0], call->out[0], NULL, TERN__BY_WIDTH(tern__pool)->avg, false);
}

int tern__cpu_avg_pool_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_pool(call);
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_avg_pool_grad);
    return pool(call, call->out[0], call->in[0], NULL, TERN__BY_WIDTH(tern__pool)->avg_grad, true);
}
