/* interpolate.c - resizing as products with band matrices.
 *
 * Along each axis an element of the result is a weighted sum of a few neighbours of the source: a band.
 * This also holds for the gradient, since its matrix is the transpose, whose rows are bands as well. So
 * one loop does both. A row of the result uses the source's rows in its bands of depth and height. These
 * are first added up into one row, with the lanes along the row; then that row is resized along its width.
 * There a lane is a channel in the blocked layout, and a row in the plain layout: 16 rows of any planes
 * are interleaved and separated again. Rows are independent, so threads take any of them and bits do not
 * depend on the number of threads.
 *
 * f32, bf16 and f16, converted in registers; sums in f32. Elements of weight 0 are not read, so an
 * infinity affects only results that depend on it. */
#include "kernels/interpolate.h"
#include "kernels/cpu/interpolate_rows.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

/* Scratch buffers. */
enum { BANDS, ROWS };

/* ---- bands ---- */

static tern__taps taps_of(const tern__resizing *r, int d, int64_t in, int64_t out, int64_t i)
{
    return tern__taps_of(r->call->attr, d, in, out, i, false);
}

static void find_bands(const tern__resizing *r, int d, tern__resize_axis *a)
{
    for (int64_t i = 0, at = 0; i < a->to; i++) {
        tern__taps t = taps_of(r, d, a->from, a->to, i);
        a->bands[i] = (tern__resize_band){(int32_t)t.first, (int32_t)t.count, (int32_t)at};
        for (int64_t k = 0; k < t.count; k++) a->weights[at++] = (float)t.weight[k > 0];
    }
}

/* Finds the transpose's bands: the elements of y (the source here) to which an element of x contributes
 * are neighbours. They are counted first, then their weights are stored. */
static void find_transposed_bands(const tern__resizing *r, int d, tern__resize_axis *a)
{
    memset(a->bands, 0, (size_t)a->to * sizeof(*a->bands));
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < a->from; i++) {
            tern__taps t = taps_of(r, d, a->to, a->from, i);
            for (int64_t k = 0; k < t.count; k++) {
                tern__resize_band *b = &a->bands[t.first + k];
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

/* The most weights: two per element of y; for means x's size plus one per element of y. */
static int64_t weights_of(const tern__resize_axis *a)
{
    return 2 * (a->from + a->to);
}

static int open_bands(tern__resizing *r, bool gradient)
{
    int64_t bands = 0, weights = 0;
    for (int d = 0; d < TERN__SPACE; d++) {
        bands += r->axes[d].to;
        weights += weights_of(&r->axes[d]);
    }
    size_t bytes = (size_t)bands * sizeof(tern__resize_band) + (size_t)weights * sizeof(float);
    tern__resize_band *b = tern__loop_scratch_of(r->call, TERN__SCRATCH_OPERAND + BANDS, bytes);
    float *w = (float *)(b + bands);
    if (!b) return TERN_E_MEMORY;
    for (int d = 0; d < TERN__SPACE; d++) {
        tern__resize_axis *a = &r->axes[d];
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

/* Rounds up to whole cache lines of floats. */
static int64_t interpolate_lines_of(int64_t floats)
{
    return (floats + TERN__BLOCK - 1) / TERN__BLOCK * TERN__BLOCK * (int64_t)sizeof(float);
}

static int open_rooms(tern__resizing *r, int threads)
{
    const tern__resize_axis *a = r->axes;
    r->parts_room = interpolate_lines_of(a[0].widest * a[1].widest *
                                         (int64_t)(sizeof(tern__resize_part) / sizeof(float)));
    r->from_room = interpolate_lines_of(a[2].from * TERN__BLOCK);
    r->to_room = interpolate_lines_of(a[2].to * TERN__BLOCK);
    r->room = r->parts_room + r->from_room + (r->lanes == 1 ? r->from_room + 2 * r->to_room : 0);
    r->rooms = tern__loop_scratch_of(r->call, TERN__SCRATCH_OPERAND + ROWS, (size_t)(threads * r->room));
    return r->rooms ? TERN_OK : TERN_E_MEMORY;
}

static tern__resize_room interpolate_room_of(const tern__resizing *r, int thread)
{
    char *parts = r->rooms + thread * r->room, *rows = parts + r->parts_room;
    if (r->lanes == TERN__BLOCK)
        return (tern__resize_room){.parts = (tern__resize_part *)parts, .rows = (float *)rows};
    char *side = rows + r->from_room, *wide = side + r->from_room, *line = wide + r->to_room;
    return (tern__resize_room){(tern__resize_part *)parts, (float *)rows, (float *)side, (float *)wide,
                               (float *)line};
}

static int interpolate_run(const tern__call *call, bool gradient)
{
    const tern__view *from = call->in[0], *to = call->out[0];
    if (from->dtype == TERN_F64) return tern__f64_interpolate(call);
    if (from->dtype != to->dtype || from->layout != to->layout || !tern__view_is_dense(from) ||
        !tern__view_is_dense(to))
        return TERN_E_UNSUPPORTED;
    tern__resizing r = {
        .call = call, .from = from, .to = to, .lanes = from->layout == TERN__BLOCKED16 ? TERN__BLOCK : 1};
    tern__space in = tern__space_of(from), out = tern__space_of(to);
    for (int d = 0; d < TERN__SPACE; d++)
        r.axes[d] = (tern__resize_axis){.from = in.size[d], .to = out.size[d]};
    int64_t rows = from->shape[0] * from->shape[1] / r.lanes * out.size[0] * out.size[1];
    int threads = tern__loop_threads(call, TERN__MAX(tern__view_count(from), tern__view_count(to)));
    const tern__resize_fns *fns = TERN__BY_WIDTH(tern__resize);
    if (open_bands(&r, gradient) || open_rooms(&r, threads)) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        tern__resize_room m = interpolate_room_of(&r, t);
        fns->rows(&r, rows * t / threads, rows * (t + 1) / threads, &m);
    }
    return TERN_OK;
}

int tern__cpu_interpolate(const tern__call *call)
{
    return interpolate_run(call, false);
}

int tern__cpu_interpolate_grad(const tern__call *call)
{
    return interpolate_run(call, true);
}
