/* windows.c - sums over windows, one product after another. */
#include "kernels/cpu/conv/tiles/windows.h"
#include "kernels/cpu/lanes.h"

#include <math.h>

#define ROWS  TERN__AMX_ROWS
#define CHUNK 64 /* columns of dy at a time */

static int64_t windows_size_of(const tern__axis axis[3], bool target)
{
    int64_t size = 1;
    for (int d = 0; d < 3; d++) size *= target ? axis[d].target : axis[d].source;
    return size;
}

/* The element of a channel at position 0 of an image of `size` positions. */
static int64_t channel_at(const tern__view *v, int64_t image, int64_t channel, int64_t size)
{
    int64_t lane = v->layout == TERN__BLOCKED16 ? channel % ROWS : 0;
    return (image * v->shape[1] + channel - lane) * size + lane;
}

/* The distance from one position to the next. */
static int64_t pitch_of(const tern__view *v)
{
    return v->layout == TERN__BLOCKED16 ? ROWS : 1;
}

/* Up to 16 values, `apart` elements from each other; the rest are 0. */
TERN__INLINE tern__lanes read_apart(const tern__view *v, int64_t at, int64_t apart, int64_t n)
{
    if (apart == 1 && n == ROWS) return tern__lanes_get(v->data, v->dtype, at, ROWS);
    float values[ROWS] = {0};
    for (int64_t l = 0; l < n; l++) values[l] = tern__lanes_get(v->data, v->dtype, at + l * apart, 1)[0];
    return tern__lanes_load(values, ROWS);
}

/* 16 channels at a position, from `channel` on, a multiple of 16. */
TERN__INLINE tern__lanes channels_at(const tern__view *v, int64_t image, int64_t channel, int64_t size,
                                     int64_t position)
{
    return read_apart(v, channel_at(v, image, channel, size) + position * pitch_of(v),
                      v->layout == TERN__BLOCKED16 ? 1 : size, TERN__MIN(ROWS, v->shape[1] - channel));
}

/* Whether all lanes are NaN: nothing that is added changes them. */
TERN__INLINE bool is_nan(tern__lanes v)
{
    tern__words infinity = (tern__words){0} + 0x7f800000;
    return !tern__words_have_large(~tern__words_less(infinity, (tern__words)v & 0x7fffffff));
}

/* ---- the convolution and its data gradient ---- */

/* Positions of the source that a tap sees from each place of a tile; -1: none. */
typedef struct sight {
    int64_t k[3], weight; /* of the kernel, and its offset in the weight */
    int64_t at[ROWS];
} sight;

/* The places of a tile that are results: their image, and their sheet, row and column. */
typedef struct places {
    int64_t image[ROWS], at[ROWS][3];
    uint32_t wanted; /* a bit for each */
} places;

static places windows_places_of(const tern__target *t, tern__place p, int rows)
{
    places all = {.wanted = 0};
    for (int r = 0; r < rows; r++, tern__place_step(t->slabs, &p, 1)) {
        const int64_t index[3] = {p.sheet, p.row, p.column};
        bool is_result = p.bunch + p.image < t->view->shape[0];
        for (int d = 0; d < 3; d++) {
            is_result = is_result && index[d] < p.count[d];
            all.at[r][d] = p.start[d] + index[d] * t->slabs->p.axis[d].turns;
        }
        all.image[r] = p.bunch + p.image;
        all.wanted |= (uint32_t)is_result << r;
    }
    return all;
}

static sight sight_of(const tern__windows *s, const places *p, int64_t tap)
{
    sight g = {.weight = s->offset};
    for (int d = 2, dim = s->w->ndim - 1; d >= 0; tap /= s->axis[d--].kernel, dim--) {
        g.k[d] = tap % s->axis[d].kernel;
        if (dim >= 2) g.weight += g.k[d] * s->w->stride[dim];
    }
    for (int r = 0; r < ROWS; r++) {
        g.at[r] = p->wanted >> r & 1 ? 0 : -1;
        for (int d = 0; d < 3 && g.at[r] >= 0; d++) {
            int64_t from = tern__axis_seen(&s->axis[d], p->at[r][d], g.k[d]);
            g.at[r] = from < 0 ? -1 : g.at[r] * s->axis[d].source + from;
        }
    }
    return g;
}

/* The places that see a large value at a tap, and those that are known to. */
TERN__AMX_SIMD static uint32_t find_large(const tern__windows *s, const places *p, const sight *g,
                                          uint32_t large)
{
    int64_t size = windows_size_of(s->axis, false);
    for (int r = 0; r < ROWS; r++) {
        tern__words seen = {0};
        for (int64_t c = 0; c < s->source->shape[1] && g->at[r] >= 0 && !(large >> r & 1); c += ROWS)
            seen |= tern__lanes_large(channels_at(s->source, p->image[r], c, size, g->at[r]));
        large |= (uint32_t)tern__words_have_large(seen) << r;
    }
    return large;
}

/* Adds a tap's products. Weights are gathered once for all places. Places whose sums are all NaN need no
 * further taps. */
TERN__AMX_SIMD static void add_tap(const tern__windows *s, places *p, const sight *g, int64_t column,
                                   float *sums)
{
    bool turned = s->axis[2].gradient;
    int64_t size = windows_size_of(s->axis, false), ins = s->source->shape[1];
    int64_t columns = TERN__MIN(ROWS, s->w->shape[turned] - column);
    for (int64_t channel = 0; channel < ins && p->wanted; channel += ROWS) {
        int64_t n = TERN__MIN(ROWS, ins - channel);
        tern__lanes weight[ROWS];
        for (int64_t c = 0; c < n; c++)
            weight[c] = read_apart(
                s->w, g->weight + column * s->w->stride[turned] + (channel + c) * s->w->stride[!turned],
                s->w->stride[turned], columns);
        for (int r = 0; r < ROWS; r++) {
            if (g->at[r] < 0 || !(p->wanted >> r & 1)) continue;
            float values[ROWS];
            tern__lanes_store(values, channels_at(s->source, p->image[r], channel, size, g->at[r]), ROWS);
            tern__lanes sum = tern__lanes_load(sums + r * ROWS, ROWS);
            for (int64_t c = 0; c < n; c++) sum += values[c] * weight[c];
            tern__lanes_store(sums + r * ROWS, sum, ROWS);
            p->wanted &= ~((uint32_t)is_nan(sum) << r);
        }
    }
}

void tern__windows_sum(const tern__windows *s, const tern__target *target, tern__place place, int rows,
                       int64_t column, bool all, float *sums)
{
    places p = windows_places_of(target, place, rows);
    int64_t taps = s->axis[0].kernel * s->axis[1].kernel * s->axis[2].kernel;
    uint32_t large = 0;
    for (int64_t tap = 0; tap < taps && !all; tap++) {
        sight g = sight_of(s, &p, tap);
        large = find_large(s, &p, &g, large);
    }
    if (!all) p.wanted &= large;
    for (int r = 0; r < ROWS; r++)
        if (p.wanted >> r & 1) memset(sums + r * ROWS, 0, ROWS * sizeof(*sums));
    for (int64_t tap = 0; tap < taps && p.wanted; tap++) {
        sight g = sight_of(s, &p, tap);
        add_tap(s, &p, &g, column, sums);
    }
}

bool tern__windows_weight_is_finite(const tern__windows *s, int64_t column)
{
    bool turned = s->axis[2].gradient;
    tern__view some = *s->w;
    some.data = (char *)some.data +
                (s->offset + column * some.stride[turned]) * (int64_t)tern_dtype_bytes(some.dtype);
    some.shape[turned] = TERN__MIN(ROWS, some.shape[turned] - column);
    bool finite = true;
    for (int64_t i = 0; i < tern__view_count(&some) && finite; i++)
        finite = isfinite(tern__view_get(&some, i));
    return finite;
}

/* ---- the gradient of weights ---- */

/* Some columns of a row of dy, each with 16 channels. */
typedef struct line {
    int64_t image, at[2], first, count;
    tern__lanes dy[CHUNK];
} line;

TERN__INLINE void read_line(const tern__weight_windows *s, int64_t out, line *l)
{
    const tern__axis *a = s->axis;
    int64_t size = windows_size_of(a, true),
            at = (l->at[0] * a[1].target + l->at[1]) * a[2].target + l->first;
    for (int64_t i = 0; i < l->count; i++) l->dy[i] = channels_at(s->dy, l->image, out, size, at + i);
}

/* Adds the products of a line, four sums side by side. */
TERN__INLINE tern__lanes sum_line(const tern__weight_windows *s, const tern__window_tap *tap, const line *l)
{
    const tern__axis *a = s->axis;
    int64_t z = tern__axis_seen(&a[0], l->at[0], tap->at[0]),
            y = tern__axis_seen(&a[1], l->at[1], tap->at[1]);
    tern__lanes sum[4] = {{0}, {0}, {0}, {0}};
    if (z < 0 || y < 0) return sum[0];
    int64_t pitch = pitch_of(s->x), step = a[2].stride * pitch, first = 0, last = l->count;
    while (first < last && tern__axis_seen(&a[2], l->first + first, tap->at[2]) < 0) first++;
    while (first < last && tern__axis_seen(&a[2], l->first + last - 1, tap->at[2]) < 0) last--;
    int64_t x = tern__axis_seen(&a[2], l->first + first, tap->at[2]);
    int64_t at = channel_at(s->x, l->image, tap->channel, windows_size_of(a, false)) +
                 ((z * a[1].source + y) * a[2].source + x) * pitch;
    for (int64_t i = first; i < last; i++, at += step)
        sum[i % 4] += tern__lanes_get(s->x->data, s->x->dtype, at, 1)[0] * l->dy[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Adds the products of all lines, until all are NaN: sums[i] has tap i's of 16 channels of dy. */
TERN__AMX_SIMD static void add_lines(const tern__weight_windows *s, const tern__window_tap *taps, int count,
                                     int64_t out, tern__lanes *sums)
{
    const tern__axis *a = s->axis;
    int64_t rows = s->x->shape[0] * a[0].target * a[1].target, unknown = count;
    for (int64_t row = 0; row < rows && unknown; row++) {
        line l = {.image = row / (a[0].target * a[1].target),
                  .at = {row / a[1].target % a[0].target, row % a[1].target}};
        for (; l.first < a[2].target; l.first += CHUNK) {
            l.count = TERN__MIN(CHUNK, a[2].target - l.first);
            read_line(s, out, &l);
            unknown = 0;
            for (int i = 0; i < count; i++) {
                if (!is_nan(sums[i])) sums[i] += sum_line(s, &taps[i], &l);
                unknown += !is_nan(sums[i]);
            }
        }
    }
}

void tern__windows_sum_weight(const tern__weight_windows *s, const tern__window_tap *taps, int count,
                              int64_t out, float *sums)
{
    tern__lanes by_tap[ROWS] = {{0}};
    add_lines(s, taps, count, out, by_tap);
    for (int i = 0; i < ROWS; i++)
        for (int o = 0; o < ROWS; o++) sums[o * ROWS + i] = by_tap[i][o];
}
