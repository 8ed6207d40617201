/* planes.h - how the sheets (of a volume), rows and columns of a convolution's source map to planes in
 * which every tap of the kernel is a shift (tiles/slab.h). */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_PLANES_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_PLANES_H

#include "kernels/conv.h"
#include "tensor/view.h"

/* One dimension. The source is x and the target y; in a data gradient the opposite. */
typedef struct tern__axis {
    bool gradient;
    int64_t stride, dilation, padding, kernel;
    int64_t source, target; /* rows                                                          */
    int64_t step, turns;    /* phases, turns: one is the stride, the other is 1 */
    int64_t margin, size;   /* row of the plane for source row 0 (times step); rows of a plane */
} tern__axis;

/* The number of positions of a turn. Position j is row turn + j * turns of the target. */
static inline int64_t tern__axis_positions(const tern__axis *a, int64_t turn)
{
    return turn < a->target ? (a->target - turn + a->turns - 1) / a->turns : 0;
}

static inline void tern__axis_turn_round(tern__axis *a, int64_t in, int64_t out, int64_t reach)
{
    a->source = out;
    a->target = in;
    a->step = 1;
    a->turns = a->stride;
    a->margin = TERN__MAX(0, (reach - a->padding + a->stride - 1) / a->stride);
    a->size = 0;
    for (int64_t t = 0; t < a->turns; t++)
        a->size = TERN__MAX(a->size, a->margin + (t + a->padding) / a->stride + tern__axis_positions(a, t));
}

/* Axis d of depth (without one: a single sheet), rows and columns. */
static inline tern__axis tern__axis_of(const tern__conv_attr *attr, int d, const tern__view *x,
                                       const tern__view *y, const tern__view *w, bool gradient)
{
    int dim = x->ndim - 3 + d;
    bool none = dim < 2;
    int64_t in = none ? 1 : x->shape[dim], out = none ? 1 : y->shape[dim], kernel = none ? 1 : w->shape[dim];
    int64_t reach = (kernel - 1) * attr->dilation[d];
    tern__axis a = {.gradient = gradient,
                    .stride = attr->stride[d],
                    .dilation = attr->dilation[d],
                    .padding = attr->padding[d],
                    .kernel = kernel,
                    .source = in,
                    .target = out,
                    .step = attr->stride[d],
                    .turns = 1,
                    .margin = attr->padding[d],
                    .size = out + reach / attr->stride[d]};
    if (gradient) tern__axis_turn_round(&a, in, out, reach);
    return a;
}

/* The source's row at row i of a phase's plane; -1: padding. */
static inline int64_t tern__axis_source(const tern__axis *a, int64_t phase, int64_t i)
{
    int64_t at = i * a->step + phase - a->margin;
    return at < a->source ? at : -1;
}

/* Rows first .. last - 1 of a phase's plane come from the source. */
static inline void tern__axis_range(const tern__axis *a, int64_t phase, int64_t *first, int64_t *last)
{
    int64_t begin = a->margin - phase, end = a->source + begin;
    *first = TERN__MIN(a->size, (begin + a->step - 1) / a->step);
    *last = TERN__MAX(*first, TERN__MIN(a->size, (end + a->step - 1) / a->step));
}

/* What kernel position k reads for the first position of a turn; false: nothing. */
static inline bool tern__axis_tap(const tern__axis *a, int64_t turn, int64_t k, int64_t *phase,
                                  int64_t *shift)
{
    int64_t at = k * a->dilation;
    if (a->gradient) at = turn + a->padding + a->margin * a->stride - at;
    *phase = a->gradient ? 0 : at % a->step;
    *shift = at / a->stride;
    return !a->gradient || at % a->stride == 0;
}

/* The source's row that kernel position k reads for row `at` of the target; -1: padding, or nothing. */
static inline int64_t tern__axis_seen(const tern__axis *a, int64_t at, int64_t k)
{
    int64_t from =
        a->gradient ? at + a->padding - k * a->dilation : at * a->stride + k * a->dilation - a->padding;
    if (from < 0 || (a->gradient && from % a->stride)) return -1;
    if (a->gradient) from /= a->stride;
    return from < a->source ? from : -1;
}

/* All three dimensions. Phases, turns and taps are row-major indices. A volume is computed in slabs of
 * some sheets of results, whose planes have `more` additional sheets. */
typedef struct tern__tile_planes {
    tern__axis axis[3];
    int64_t phases, turns, taps;
    int64_t sheet;      /* positions of a sheet of a plane */
    int64_t most, more; /* sheets of a turn's results; additional sheets */
} tern__tile_planes;

static inline tern__tile_planes tern__planes_of(const tern__conv_attr *attr, const tern__view *x,
                                                const tern__view *y, const tern__view *w, bool gradient)
{
    tern__tile_planes p = {.phases = 1, .turns = 1, .taps = 1};
    for (int d = 0; d < 3; d++) {
        p.axis[d] = tern__axis_of(attr, d, x, y, w, gradient);
        p.phases *= p.axis[d].step;
        p.turns *= p.axis[d].turns;
        p.taps *= p.axis[d].kernel;
    }
    p.axis[2].size += p.axis[2].size % 2; /* pairs of positions begin anew in each row */
    p.sheet = p.axis[1].size * p.axis[2].size;
    const tern__axis *deep = &p.axis[0];
    p.most = tern__axis_positions(deep, 0);
    p.more = gradient ? deep->margin + (deep->turns - 1 + deep->padding) / deep->stride : deep->size - p.most;
    return p;
}

/* The place in the source of a plane's row: its first column; -1: padding. */
static inline int64_t tern__planes_row(const tern__tile_planes *p, int64_t phase, int64_t sheet, int64_t row)
{
    const tern__axis *a = p->axis;
    int64_t z = tern__axis_source(&a[0], phase / a[2].step / a[1].step, sheet);
    int64_t y = tern__axis_source(&a[1], phase / a[2].step % a[1].step, row);
    return z < 0 || y < 0 ? -1 : (z * a[1].source + y) * a[2].source;
}

/* What a tap reads for the first position of a turn; false: nothing. */
static inline bool tern__planes_tap(const tern__tile_planes *p, int64_t turn, int64_t tap, int64_t *phase,
                                    int64_t *shift)
{
    int64_t phases = 1, positions = 1;
    *phase = *shift = 0;
    for (int d = 2; d >= 0; d--) {
        const tern__axis *a = &p->axis[d];
        int64_t one_phase, one_shift;
        if (!tern__axis_tap(a, turn % a->turns, tap % a->kernel, &one_phase, &one_shift)) return false;
        *phase += one_phase * phases;
        *shift += one_shift * positions;
        phases *= a->step;
        positions *= a->size;
        turn /= a->turns;
        tap /= a->kernel;
    }
    return true;
}

#endif
