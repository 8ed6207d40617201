/* interpolate_rows.c - rows of the result, in vectors as wide as registers. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/interpolate_rows.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/planes.h"

#define LANES  TERN__LANES
#define PARTS  TERN__PARTS
#define BESIDE (4 * PARTS) /* vectors of a row that are summed at a time */

/* ---- adding up the source's rows ---- */

/* Adds n vectors of `width` floats from element `at` of the row on. */
TERN__INLINE void sum_at(const tern__resizing *r, const tern__resize_part *parts, int64_t count, int64_t at,
                         float *to, int n, int width, tern_dtype dtype)
{
    tern__lanes sum[BESIDE] = {{0}};
    for (int64_t p = 0; p < count; p++)
        _Pragma("GCC unroll 16") for (int v = 0; v < n; v++) sum[v] +=
            parts[p].weight * tern__lanes_get(r->from->data, dtype, parts[p].at + at + v * LANES, width);
    _Pragma("GCC unroll 16") for (int v = 0; v < n; v++)
        tern__lanes_store(to + at + v * LANES, sum[v], width);
}

/* Adds up rows; the last vector of a row overlaps the one before it. */
TERN__INLINE void sum_rows(const tern__resizing *r, const tern__resize_part *parts, int64_t count, float *to,
                           tern_dtype dtype)
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

/* Resizes 16 lanes; results go to element `at` of memory of `dtype` on. */
TERN__INLINE void resize_width(const tern__resizing *r, const float *row, void *to, int64_t at,
                               tern_dtype dtype, bool add)
{
    const tern__resize_axis *a = &r->axes[2];
    for (int64_t i = 0; i < a->to; i++) {
        const tern__resize_band *b = &a->bands[i];
        const float *weights = a->weights + b->at, *from = row + b->first * (int64_t)TERN__BLOCK;
        tern__lanes sum[PARTS] = {{0}};
        for (int64_t k = 0; k < b->count; k++)
            _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; p++) sum[p] +=
                weights[k] * tern__lanes_load(from + k * TERN__BLOCK + p * LANES, LANES);
        _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; p++)
            tern__lanes_set(to, dtype, at + i * TERN__BLOCK + p * LANES, sum[p], LANES, add);
    }
}

/* Stores n floats from element `at` of the result on. */
TERN__INLINE void put_line(const tern__resizing *r, const float *line, int64_t at, int64_t n,
                           tern_dtype dtype)
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

/* Finds the source's rows for row (d, h) of a plane. Inline, to be compiled for the target of its caller,
 * whose wide registers code for another target would have to save. */
TERN__INLINE int64_t find_parts(const tern__resizing *r, int64_t plane, int64_t d, int64_t h,
                                tern__resize_part *parts)
{
    const tern__resize_axis *a = r->axes;
    const tern__resize_band *outer = &a[0].bands[d], *inner = &a[1].bands[h];
    int64_t count = 0, width = a[2].from * r->lanes;
    for (int i = 0; i < outer->count; i++)
        for (int j = 0; j < inner->count; j++) {
            int64_t row = (plane * a[0].from + outer->first + i) * a[1].from + inner->first + j;
            float weight = a[0].weights[outer->at + i] * a[1].weights[inner->at + j];
            parts[count++] = (tern__resize_part){row * width, weight};
        }
    return count;
}

/* Adds up the source's rows for row `number` of all. */
TERN__INLINE void make_row(const tern__resizing *r, int64_t number, tern__resize_part *parts, float *row,
                           tern_dtype dtype)
{
    const tern__resize_axis *a = r->axes;
    int64_t h = number % a[1].to, d = number / a[1].to % a[0].to, plane = number / a[1].to / a[0].to;
    sum_rows(r, parts, find_parts(r, plane, d, h, parts), row, dtype);
}

TERN__INLINE void resize_block(const tern__resizing *r, int64_t number, const tern__resize_room *m,
                               tern_dtype dtype)
{
    make_row(r, number, m->parts, m->rows, dtype);
    resize_width(r, m->rows, r->to->data, number * r->axes[2].to * TERN__BLOCK, dtype, r->call->add[0]);
}

/* Computes rows first .. first + n - 1 in the plain layout. */
TERN__INLINE void resize_lines(const tern__resizing *r, int64_t first, int n, const tern__resize_room *m,
                               tern_dtype dtype)
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

TERN__INLINE void resize_rows(const tern__resizing *r, int64_t first, int64_t last,
                              const tern__resize_room *m, tern_dtype dtype)
{
    for (int64_t i = first; i < last && r->lanes == TERN__BLOCK; i++) resize_block(r, i, m, dtype);
    for (int64_t i = first; i < last && r->lanes == 1; i += TERN__BLOCK)
        resize_lines(r, i, (int)TERN__MIN(TERN__BLOCK, last - i), m, dtype);
}

/* Computes rows first .. last - 1 of all planes' rows. */
TERN__SIMD static void interpolate_resize(const tern__resizing *r, int64_t first, int64_t last,
                                          const tern__resize_room *m)
{
    if (r->from->dtype == TERN_F32)
        resize_rows(r, first, last, m, TERN_F32);
    else if (r->from->dtype == TERN_BF16)
        resize_rows(r, first, last, m, TERN_BF16);
    else
        resize_rows(r, first, last, m, TERN_F16);
}

const tern__resize_fns TERN__OF_WIDTH(tern__resize) = {interpolate_resize};
