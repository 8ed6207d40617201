/* interpolate.c - resizing as products with band matrices.
 *
 * Along each axis an element of the result is a weighted sum of a few neighbours of the source: a band. Of
 * the gradient that is true as well, since its matrix is the transpose, whose rows are bands too. So one loop
 * does both: a row of the result is made of the source's rows that its bands of depth and height name, which
 * are first added up into one row, along which the lanes go; only then that is resized along its width. There
 * a lane is a channel in the blocked layout, and in the plain one a row: 16 of them are brought side by side,
 * whatever planes they are of, and taken apart again. Rows do not depend on each other: threads take any of
 * them, and bits do not depend on how many threads there are.
 *
 * f32, bf16 and f16, converted in registers; sums in f32. What has weight 0 is not looked at, so an infinity
 * stays where it is seen. */
#include "kernels/interpolate.h"
#include "kernels/cpu/f64_interpolate.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/planes.h"

#define LANES  TERN__LANES
#define BESIDE 4 /* vectors of a row that are summed at a time */

/* Scratch buffers. */
enum { BANDS, ROWS };

/* Elements first to first + count - 1 of the source, with weights[at ..]. */
typedef struct band {
    int32_t first, count, at;
} band;

typedef struct axis {
    int64_t from, to; /* sizes of the source and of the result */
    band *bands;      /* [to]                                  */
    float *weights;   /* of all bands, one after the other     */
    int64_t widest;
} axis;

/* A row of the source that counts. */
typedef struct part {
    int64_t at;
    float weight;
} part;

typedef struct resizing {
    const tern__call *call;
    const tern__view *from, *to;
    axis axes[TERN__SPACE];
    int lanes;   /* of a position: 16, or 1 in the plain layout */
    char *rooms; /* of each thread                              */
    int64_t room, parts_room, from_room, to_room;
} resizing;

/* A thread's memory. */
typedef struct room {
    part *parts;
    float *rows; /* of the source, added up: one, or in the plain layout 16 */
    float *side; /* plain: these side by side                               */
    float *wide; /* plain: what is made of them                             */
    float *line; /* plain: it taken apart                                   */
} room;

/* ---- bands ---- */

static tern__taps taps_of(const resizing *r, int d, int64_t in, int64_t out, int64_t i)
{
    return tern__taps_of(r->call->attr, d, in, out, i, false);
}

static void find_bands(const resizing *r, int d, axis *a)
{
    for (int64_t i = 0, at = 0; i < a->to; i++) {
        tern__taps t = taps_of(r, d, a->from, a->to, i);
        a->bands[i] = (band){(int32_t)t.first, (int32_t)t.count, (int32_t)at};
        for (int64_t k = 0; k < t.count; k++) a->weights[at++] = (float)t.weight[k > 0];
    }
}

/* The transpose's: the elements of y (the source here) that an element of x counts for are neighbours. They
 * are counted first, then the weights find their places. */
static void find_transposed_bands(const resizing *r, int d, axis *a)
{
    memset(a->bands, 0, (size_t)a->to * sizeof(*a->bands));
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < a->from; i++) {
            tern__taps t = taps_of(r, d, a->to, a->from, i);
            for (int64_t k = 0; k < t.count; k++) {
                band *b = &a->bands[t.first + k];
                if (b->count == 0) b->first = (int32_t)i;
                if (pass) a->weights[b->at + b->count] = (float)t.weight[k > 0];
                b->count++;
            }
        }
        for (int64_t i = 0, at = 0; !pass && i < a->to; i++) {
            a->bands[i].at = (int32_t)at;
            at += a->bands[i].count;
            a->bands[i].count = 0;
        }
    }
}

/* No more than two weights an element of y, or, in means, than x has elements and one more for each of y. */
static int64_t weights_of(const axis *a)
{
    return 2 * (a->from + a->to);
}

static int open_bands(resizing *r, bool gradient)
{
    int64_t bands = 0, weights = 0;
    for (int d = 0; d < TERN__SPACE; d++) {
        bands += r->axes[d].to;
        weights += weights_of(&r->axes[d]);
    }
    size_t bytes = (size_t)bands * sizeof(band) + (size_t)weights * sizeof(float);
    band *b = tern__loop_scratch_of(r->call, TERN__SCRATCH_OPERAND + BANDS, bytes);
    float *w = (float *)(b + bands);
    if (!b) return TERN_E_MEMORY;
    for (int d = 0; d < TERN__SPACE; d++) {
        axis *a = &r->axes[d];
        a->bands = b;
        a->weights = w;
        b += a->to;
        w += weights_of(a);
        if (gradient)
            find_transposed_bands(r, d, a);
        else
            find_bands(r, d, a);
        for (int64_t i = 0; i < a->to; i++) a->widest = TERN__MAX(a->widest, a->bands[i].count);
    }
    return TERN_OK;
}

/* Whole cache lines of floats. */
static int64_t lines_of(int64_t floats)
{
    return (floats + LANES - 1) / LANES * LANES * (int64_t)sizeof(float);
}

static int open_rooms(resizing *r, int threads)
{
    const axis *a = r->axes;
    r->parts_room = lines_of(a[0].widest * a[1].widest * (int64_t)(sizeof(part) / sizeof(float)));
    r->from_room = lines_of(a[2].from * LANES);
    r->to_room = lines_of(a[2].to * LANES);
    r->room = r->parts_room + r->from_room + (r->lanes == 1 ? r->from_room + 2 * r->to_room : 0);
    r->rooms = tern__loop_scratch_of(r->call, TERN__SCRATCH_OPERAND + ROWS, (size_t)(threads * r->room));
    return r->rooms ? TERN_OK : TERN_E_MEMORY;
}

static room room_of(const resizing *r, int thread)
{
    char *parts = r->rooms + thread * r->room, *rows = parts + r->parts_room;
    if (r->lanes == LANES) return (room){.parts = (part *)parts, .rows = (float *)rows};
    char *side = rows + r->from_room, *wide = side + r->from_room, *line = wide + r->to_room;
    return (room){(part *)parts, (float *)rows, (float *)side, (float *)wide, (float *)line};
}

/* ---- the rows that count become one ---- */

/* n vectors of `width` floats from element `at` of the row on. */
TERN__INLINE void sum_at(const resizing *r, const part *parts, int64_t count, int64_t at, float *to, int n,
                         int width, tern_dtype dtype)
{
    tern__lanes sum[BESIDE] = {{0}};
    for (int64_t p = 0; p < count; p++)
        for (int v = 0; v < n; v++)
            sum[v] +=
                parts[p].weight * tern__lanes_get(r->from->data, dtype, parts[p].at + at + v * LANES, width);
    for (int v = 0; v < n; v++) tern__lanes_store(to + at + v * LANES, sum[v], width);
}

/* The last vector of a row overlaps the one before it. */
TERN__INLINE void sum_rows(const resizing *r, const part *parts, int64_t count, float *to, tern_dtype dtype)
{
    int64_t n = r->axes[2].from * r->lanes, at = 0;
    for (; at + BESIDE * LANES <= n; at += BESIDE * LANES)
        sum_at(r, parts, count, at, to, BESIDE, LANES, dtype);
    for (; at + LANES <= n; at += LANES) sum_at(r, parts, count, at, to, 1, LANES, dtype);
    if (at < n && n > LANES)
        sum_at(r, parts, count, n - LANES, to, 1, LANES, dtype);
    else if (at < n)
        sum_at(r, parts, count, 0, to, 1, (int)n, dtype);
}

/* ---- along the width ---- */

/* From 16 lanes to 16 lanes, from element `at` of memory of `dtype` on. */
TERN__INLINE void resize_width(const resizing *r, const float *row, void *to, int64_t at, tern_dtype dtype,
                               bool add)
{
    const axis *a = &r->axes[2];
    for (int64_t i = 0; i < a->to; i++) {
        const band *b = &a->bands[i];
        tern__lanes sum = {0};
        for (int k = 0; k < b->count; k++)
            sum += a->weights[b->at + k] * tern__lanes_load(row + (b->first + k) * LANES, LANES);
        tern__lanes_set(to, dtype, at + i * LANES, sum, LANES, add);
    }
}

/* n floats to element `at` of the result on. */
TERN__INLINE void put_line(const resizing *r, const float *line, int64_t at, int64_t n, tern_dtype dtype)
{
    int64_t i = 0;
    bool add = r->call->add[0];
    void *to = r->to->data;
    for (; i + LANES <= n; i += LANES)
        tern__lanes_set(to, dtype, at + i, tern__lanes_load(line + i, LANES), LANES, add);
    int rest = (int)(n - i);
    if (rest) tern__lanes_set(to, dtype, at + i, tern__lanes_load(line + i, rest), rest, add);
}

/* ---- rows of the result ---- */

/* The source's rows of which row (d, h) of a plane is made. Inline: for the target of its caller, whose wide
 * registers code for another one would have to save. */
TERN__INLINE int64_t find_parts(const resizing *r, int64_t plane, int64_t d, int64_t h, part *parts)
{
    const axis *a = r->axes;
    const band *outer = &a[0].bands[d], *inner = &a[1].bands[h];
    int64_t count = 0, width = a[2].from * r->lanes;
    for (int i = 0; i < outer->count; i++)
        for (int j = 0; j < inner->count; j++) {
            int64_t row = (plane * a[0].from + outer->first + i) * a[1].from + inner->first + j;
            float weight = a[0].weights[outer->at + i] * a[1].weights[inner->at + j];
            parts[count++] = (part){row * width, weight};
        }
    return count;
}

/* The source's rows of which row `number` of all is made become one. */
TERN__INLINE void make_row(const resizing *r, int64_t number, part *parts, float *row, tern_dtype dtype)
{
    const axis *a = r->axes;
    int64_t h = number % a[1].to, d = number / a[1].to % a[0].to, plane = number / a[1].to / a[0].to;
    sum_rows(r, parts, find_parts(r, plane, d, h, parts), row, dtype);
}

TERN__INLINE void resize_block(const resizing *r, int64_t number, const room *m, tern_dtype dtype)
{
    make_row(r, number, m->parts, m->rows, dtype);
    resize_width(r, m->rows, r->to->data, number * r->axes[2].to * LANES, dtype, r->call->add[0]);
}

/* Rows first to first + n - 1 of the plain layout. */
TERN__INLINE void resize_lines(const resizing *r, int64_t first, int n, const room *m, tern_dtype dtype)
{
    int64_t from = r->axes[2].from, to = r->axes[2].to;
    for (int l = 0; l < n; l++) make_row(r, first + l, m->parts, m->rows + l * from, dtype);
    tern__lines_join(m->side, m->rows, from, from, n);
    resize_width(r, m->side, m->wide, 0, TERN_F32, false);
    if (dtype == TERN_F32) {
        tern__lines_part((float *)r->to->data + first * to, m->wide, to, to, n, r->call->add[0]);
        return;
    }
    tern__lines_part(m->line, m->wide, to, to, n, false);
    put_line(r, m->line, first * to, n * to, dtype);
}

TERN__INLINE void resize_rows(const resizing *r, int64_t first, int64_t last, const room *m, tern_dtype dtype)
{
    for (int64_t i = first; i < last && r->lanes == LANES; i++) resize_block(r, i, m, dtype);
    for (int64_t i = first; i < last && r->lanes == 1; i += LANES)
        resize_lines(r, i, (int)TERN__MIN(LANES, last - i), m, dtype);
}

/* Rows first to last - 1 of all planes' rows. */
TERN__SIMD static void resize(const resizing *r, int64_t first, int64_t last, const room *m)
{
    if (r->from->dtype == TERN_F32)
        resize_rows(r, first, last, m, TERN_F32);
    else if (r->from->dtype == TERN_BF16)
        resize_rows(r, first, last, m, TERN_BF16);
    else
        resize_rows(r, first, last, m, TERN_F16);
}

static int run(const tern__call *call, bool gradient)
{
    const tern__view *from = call->in[0], *to = call->out[0];
    if (from->dtype == TERN_F64) return tern__f64_interpolate(call);
    if (from->dtype != to->dtype || from->layout != to->layout || !tern__view_is_dense(from) ||
        !tern__view_is_dense(to))
        return TERN_E_UNSUPPORTED;
    resizing r = {.call = call, .from = from, .to = to, .lanes = from->layout == TERN__BLOCKED16 ? LANES : 1};
    tern__space in = tern__space_of(from), out = tern__space_of(to);
    for (int d = 0; d < TERN__SPACE; d++) r.axes[d] = (axis){.from = in.size[d], .to = out.size[d]};
    int64_t rows = from->shape[0] * from->shape[1] / r.lanes * out.size[0] * out.size[1];
    int threads = tern__loop_threads(call, TERN__MAX(tern__view_count(from), tern__view_count(to)));
    if (open_bands(&r, gradient) || open_rooms(&r, threads)) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        room m = room_of(&r, t);
        resize(&r, rows * t / threads, rows * (t + 1) / threads, &m);
    }
    return TERN_OK;
}

int tern__cpu_interpolate(const tern__call *call)
{
    return run(call, false);
}

int tern__cpu_interpolate_grad(const tern__call *call)
{
    return run(call, true);
}
