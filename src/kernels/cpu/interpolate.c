/* interpolate.c - resizing as products with band matrices.
 *
 * Along each axis an element of the result is a weighted sum of a few neighbours of the source: a band. Of
 * the gradient that is true as well, since its matrix is the transpose, whose rows are bands too. So one loop
 * does both: a row of the result is made of the source's rows that its bands of depth and height name, which
 * are first added up into one row, all lanes side by side; only then that is resized along its width, in
 * which neighbours are 16 channels (the blocked layout) or single elements (gathered). Rows are independent
 * of each other, whatever plane they are of: threads take any number of them, and bits do not depend on how
 * many.
 *
 * f32, bf16 and f16, converted in registers; sums in f32. What has weight 0 is not looked at, so an infinity
 * stays where it is seen. */
#include "kernels/interpolate.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

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
    int lanes;      /* of a position: 16, or 1 in the plain layout                            */
    int64_t planes; /* of so many lanes                                                        */
    int32_t *first; /* plain: [to] where each band along the width begins                      */
    float *columns; /* plain: [widest][to] the bands' weights number 0, 1, ..; 0 where none is */
    char *rooms;    /* for each thread: parts, a row of the source, a row of the result        */
    int64_t room, parts_room, row_room;
} resizing;

/* ---- bands ---- */

static tern__taps taps_of(const resizing *r, int d, int64_t in, int64_t out, int64_t i)
{
    return tern__taps_of(r->call->attr, d, in, out, i, false);
}

static void find_bands(const resizing *r, int d, axis *a)
{
    for (int64_t i = 0; i < a->to; i++) {
        tern__taps t = taps_of(r, d, a->from, a->to, i);
        a->bands[i] = (band){(int32_t)t.first, t.weight[1] != 0 ? 2 : 1, (int32_t)(2 * i)};
        for (int k = 0; k < 2; k++) a->weights[2 * i + k] = (float)t.weight[k];
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
            for (int k = 0; k < 2; k++) {
                if (t.weight[k] == 0) continue;
                band *b = &a->bands[t.first + k];
                if (b->count == 0) b->first = (int32_t)i;
                if (pass) a->weights[b->at + b->count] = (float)t.weight[k];
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

/* What the gathering loop reads: k-th weights of all elements side by side. */
static void find_columns(resizing *r)
{
    const axis *a = &r->axes[2];
    memset(r->columns, 0, (size_t)(a->widest * a->to) * sizeof(*r->columns));
    for (int64_t i = 0; i < a->to; i++) {
        const band *b = &a->bands[i];
        r->first[i] = b->first;
        for (int k = 0; k < b->count; k++) r->columns[k * a->to + i] = a->weights[b->at + k];
    }
}

static int open_bands(resizing *r, bool gradient)
{
    int64_t bands = 0, weights = 0;
    for (int d = 0; d < TERN__SPACE; d++) {
        bands += r->axes[d].to;
        weights += 2 * (gradient ? r->axes[d].from : r->axes[d].to);
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
        w += 2 * (gradient ? a->from : a->to);
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

/* The gathering loop may look beyond a row by less than the widest band. */
static int open_rooms(resizing *r, int threads)
{
    const axis *a = r->axes;
    int64_t columns = r->lanes == 1 ? lines_of(a[2].widest * a[2].to) : 0;
    int64_t firsts = r->lanes == 1 ? lines_of(a[2].to) : 0;
    r->parts_room = lines_of(a[0].widest * a[1].widest * (int64_t)(sizeof(part) / sizeof(float)));
    r->row_room = lines_of(a[2].from * r->lanes + a[2].widest);
    r->room = r->parts_room + r->row_room + lines_of(a[2].to);
    char *all = tern__loop_scratch_of(r->call, TERN__SCRATCH_OPERAND + ROWS,
                                      (size_t)(columns + firsts + threads * r->room));
    if (!all) return TERN_E_MEMORY;
    r->columns = (float *)all;
    r->first = (int32_t *)(all + columns);
    r->rooms = all + columns + firsts;
    if (r->lanes == 1) find_columns(r);
    return TERN_OK;
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

TERN__INLINE void resize_block(const resizing *r, const float *row, int64_t at, tern_dtype dtype)
{
    const axis *a = &r->axes[2];
    for (int64_t i = 0; i < a->to; i++) {
        const band *b = &a->bands[i];
        tern__lanes sum = {0};
        for (int k = 0; k < b->count; k++)
            sum += a->weights[b->at + k] * tern__lanes_load(row + (b->first + k) * LANES, LANES);
        tern__lanes_set(r->to->data, dtype, at + i * LANES, sum, LANES, r->call->add[0]);
    }
}

/* to[i] = sum of weight * row[..] over the band, number after number. */
TERN__INLINE void resize_line(const resizing *r, const float *restrict row, float *restrict to)
{
    const axis *a = &r->axes[2];
    const int32_t *restrict first = r->first;
    for (int64_t i = 0; i < a->to; i++) to[i] = 0;
    for (int64_t k = 0; k < a->widest; k++) {
        const float *restrict weight = r->columns + k * a->to;
        for (int64_t i = 0; i < a->to; i++) to[i] += weight[i] != 0 ? weight[i] * row[first[i] + k] : 0;
    }
}

TERN__INLINE void put_line(const resizing *r, const float *line, int64_t at, tern_dtype dtype)
{
    int64_t n = r->axes[2].to, i = 0;
    bool add = r->call->add[0];
    for (; i + LANES <= n; i += LANES)
        tern__lanes_set(r->to->data, dtype, at + i, tern__lanes_load(line + i, LANES), LANES, add);
    if (i < n)
        tern__lanes_set(r->to->data, dtype, at + i, tern__lanes_load(line + i, (int)(n - i)), (int)(n - i),
                        add);
}

/* ---- rows of the result ---- */

/* The source's rows of which row (d, h) of a plane is made. */
static int64_t find_parts(const resizing *r, int64_t plane, int64_t d, int64_t h, part *parts)
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

TERN__INLINE void resize_row(const resizing *r, int64_t number, char *room, tern_dtype dtype)
{
    const axis *a = r->axes;
    part *parts = (part *)room;
    float *row = (float *)(room + r->parts_room), *line = (float *)(room + r->parts_room + r->row_room);
    int64_t h = number % a[1].to, d = number / a[1].to % a[0].to, plane = number / a[1].to / a[0].to;
    int64_t count = find_parts(r, plane, d, h, parts), at = number * a[2].to * r->lanes;
    sum_rows(r, parts, count, row, dtype);
    if (r->lanes == LANES) {
        resize_block(r, row, at, dtype);
        return;
    }
    resize_line(r, row, line);
    put_line(r, line, at, dtype);
}

/* Rows first to last - 1 of all planes' rows. */
TERN__SIMD static void resize(const resizing *r, int64_t first, int64_t last, char *room)
{
    tern_dtype dtype = r->from->dtype;
    for (int64_t i = first; i < last; i++) {
        if (dtype == TERN_F32)
            resize_row(r, i, room, TERN_F32);
        else if (dtype == TERN_BF16)
            resize_row(r, i, room, TERN_BF16);
        else
            resize_row(r, i, room, TERN_F16);
    }
}

static int run(const tern__call *call, bool gradient)
{
    const tern__view *from = call->in[0], *to = call->out[0];
    if (from->dtype != to->dtype || from->dtype == TERN_F64 || from->layout != to->layout ||
        !tern__view_is_dense(from) || !tern__view_is_dense(to))
        return TERN_E_UNSUPPORTED;
    resizing r = {.call = call, .from = from, .to = to, .lanes = from->layout == TERN__BLOCKED16 ? LANES : 1};
    tern__space in = tern__space_of(from), out = tern__space_of(to);
    for (int d = 0; d < TERN__SPACE; d++) r.axes[d] = (axis){.from = in.size[d], .to = out.size[d]};
    r.planes = from->shape[0] * from->shape[1] / r.lanes;
    int64_t rows = r.planes * out.size[0] * out.size[1];
    int threads = tern__loop_threads(call, TERN__MAX(tern__view_count(from), tern__view_count(to)));
    if (open_bands(&r, gradient) || open_rooms(&r, threads)) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        resize(&r, rows * t / threads, rows * (t + 1) / threads, r.rooms + t * r.room);
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
