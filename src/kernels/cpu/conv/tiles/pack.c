/* pack.c - packs a convolution's weight into tiles. */
#include "kernels/cpu/conv/tiles/pack.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/lanes.h"

#define ROWS  TERN__AMX_ROWS
#define DEPTH TERN__AMX_DEPTH

tern__amx_weight tern__amx_weight_of(const tern__view *w, int64_t offset, bool turned, bool unfolded)
{
    tern__amx_weight of = {.view = w,
                           .offset = offset,
                           .end = offset + 1,
                           .columns = w->shape[turned],
                           .depth = w->shape[!turned],
                           .column_stride = w->stride[turned],
                           .depth_stride = w->stride[!turned],
                           .taps = 1,
                           .tile = w->dtype == TERN_F32 ? 2 * TERN__AMX_TILE : TERN__AMX_TILE};
    for (int d = 2; d < w->ndim; d++) of.taps *= w->shape[d];
    for (int d = 0; d < w->ndim; d++) of.end += (w->shape[d] - 1) * w->stride[d];
    if (unfolded) {
        of.depth *= of.taps;
        of.depth_stride = of.taps = 1;
    }
    return of;
}

static int64_t column_bytes(const tern__amx_weight *w)
{
    return (w->depth + DEPTH - 1) / DEPTH * w->taps * w->tile;
}

static int64_t groups_of(const tern__amx_weight *w)
{
    return (w->columns + ROWS - 1) / ROWS;
}

size_t tern__amx_weight_bytes(const tern__amx_weight *w)
{
    return (size_t)(groups_of(w) * (column_bytes(w) + (int64_t)sizeof(bool)));
}

const bool *tern__amx_weight_large(const tern__amx_weight *w, const void *tiles)
{
    return (const bool *)((const char *)tiles + groups_of(w) * column_bytes(w));
}

/* Remembers columns with large floats, by sums of squares, which take one instruction. Several threads may
 * have depths of the same columns. */
TERN__INLINE void tell_large(const tern__amx_weight *w, char *tiles, int64_t column, tern__lanes squares)
{
    bool *all = (bool *)(tiles + groups_of(w) * column_bytes(w)), large = false;
    for (int l = 0; l < ROWS; l++) large = large || !(squares[l] < 0x1p100f);
    if (large) __atomic_store_n(&all[column / ROWS], true, __ATOMIC_RELAXED);
}

/* ---- one depth, one tap, 16 columns ---- */

/* The destination: taps are adjacent, then depths. */
typedef struct spot {
    char *column, *to;
    int64_t depth, tap;
} spot;

TERN__INLINE spot spot_of(const tern__amx_weight *w, char *column, int64_t depth)
{
    char *to = column + depth / DEPTH * w->taps * w->tile + depth % DEPTH / 2 * 64;
    return (spot){.column = column, .to = to, .depth = depth};
}

TERN__INLINE void next(const tern__amx_weight *w, spot *s)
{
    s->to += w->tile;
    if (++s->tap == w->taps) *s = spot_of(w, s->column, s->depth + 1);
}

/* A word of a tile has two depths. Each arrives in the upper half of a word; writing the first clears the
 * second. */
TERN__INLINE void put_word(char *to, tern__words word, bool second)
{
    tern__words first;
    memcpy(&first, to, sizeof(first));
    word = second ? first | (word & 0xffff0000) : word >> 16;
    memcpy(to, &word, sizeof(word));
}

TERN__INLINE void line_put(const tern__amx_weight *w, spot *s, tern__lanes v, tern__lanes *squares)
{
    tern__word_parts parts = {.high = (tern__words)v};
    if (w->tile > TERN__AMX_TILE) {
        *squares += v * v;
        parts = tern__lanes_split_words(v);
        put_word(s->to + TERN__AMX_TILE, parts.low, s->depth % 2);
    }
    put_word(s->to, parts.high, s->depth % 2);
    next(w, s);
}

/* ---- reading 16 columns ---- */

TERN__DEFINE_TURN(turn, tern__words)

/* Reads elements at .. at + n - 1 of each column, which are contiguous: v[i] has element at + i of all
 * columns. Elements beyond them are read but not used. */
TERN__INLINE void read_run(const tern__amx_weight *w, tern__words v[ROWS], int64_t column, int64_t at, int n)
{
    int64_t columns = TERN__MIN(ROWS, w->columns - column), from = w->offset + column * w->column_stride + at;
    bool whole = from + (columns - 1) * w->column_stride + ROWS <= w->end;
    for (int64_t c = 0; c < ROWS; c++, from += w->column_stride) {
        tern__lanes run = {0};
        if (c < columns && whole)
            run = tern__lanes_get(w->view->data, w->view->dtype, from, ROWS);
        else if (c < columns)
            run = tern__lanes_get(w->view->data, w->view->dtype, from, n);
        v[c] = (tern__words)run;
    }
    turn(v);
}

/* Reads an element of adjacent columns. */
TERN__INLINE tern__lanes read_columns(const tern__amx_weight *w, int64_t column, int64_t at)
{
    return tern__lanes_get(w->view->data, w->view->dtype, w->offset + column + at,
                           (int)TERN__MIN(ROWS, w->columns - column));
}

/* The offset of a kernel's element. */
static int64_t tap_at(const tern__view *v, int64_t tap)
{
    int64_t at = 0;
    for (int d = v->ndim - 1; d >= 2; tap /= v->shape[d--]) at += tap % v->shape[d] * v->stride[d];
    return at;
}

/* Whether the kernel has gaps: taps that only read padding are removed (conv/conv.c). */
static bool has_gaps(const tern__amx_weight *w)
{
    return w->taps > 1 && tap_at(w->view, w->taps - 1) != w->taps - 1;
}

/* ---- 16 columns, some depths ---- */

/* All depths and taps are contiguous. */
TERN__AMX_SIMD static void pack_line(const tern__amx_weight *w, char *tiles, spot s, int64_t column)
{
    tern__lanes squares = {0};
    for (int64_t at = 0; at < w->depth * w->taps; at += ROWS) {
        int n = (int)TERN__MIN(ROWS, w->depth * w->taps - at);
        tern__words v[ROWS];
        read_run(w, v, column, at, n);
        for (int i = 0; i < n; i++) line_put(w, &s, (tern__lanes)v[i], &squares);
    }
    tell_large(w, tiles, column, squares);
}

/* The taps of each depth are contiguous. */
TERN__AMX_SIMD static void pack_runs(const tern__amx_weight *w, char *tiles, spot s, int64_t column,
                                     int64_t last)
{
    tern__lanes squares = {0};
    for (int64_t depth = s.depth; depth < last; depth++)
        for (int64_t tap = 0; tap < w->taps; tap += ROWS) {
            int n = (int)TERN__MIN(ROWS, w->taps - tap);
            tern__words v[ROWS];
            read_run(w, v, column, depth * w->depth_stride + tap, n);
            for (int i = 0; i < n; i++) line_put(w, &s, (tern__lanes)v[i], &squares);
        }
    tell_large(w, tiles, column, squares);
}

/* One tap; the columns of each depth are contiguous. */
TERN__AMX_SIMD static void pack_columns(const tern__amx_weight *w, char *tiles, spot s, int64_t column,
                                        int64_t last)
{
    tern__lanes squares = {0};
    for (int64_t depth = s.depth; depth < last; depth++)
        line_put(w, &s, read_columns(w, column, depth * w->depth_stride), &squares);
    tell_large(w, tiles, column, squares);
}

/* One element at a time. */
TERN__AMX_SIMD static void pack_gaps(const tern__amx_weight *w, char *tiles, spot s, int64_t column,
                                     int64_t last)
{
    tern__lanes squares = {0};
    for (int64_t depth = s.depth; depth < last; depth++)
        for (int64_t tap = 0; tap < w->taps; tap++) {
            tern__words v[ROWS];
            read_run(w, v, column, depth * w->depth_stride + tap_at(w->view, tap), 1);
            line_put(w, &s, (tern__lanes)v[0], &squares);
        }
    tell_large(w, tiles, column, squares);
}

/* bf16 with one tap: a word of a tile is a word of the weight. */
TERN__AMX_SIMD static void pack_words(const tern__amx_weight *w, char *to, int64_t column)
{
    const uint16_t *from = (const uint16_t *)w->view->data + w->offset + column * w->column_stride;
    int64_t columns = TERN__MIN(ROWS, w->columns - column);
    for (int64_t depth = 0; depth < w->depth; depth += DEPTH, to += TERN__AMX_TILE) {
        tern__words v[ROWS] = {{0}};
        for (int64_t c = 0; c < columns; c++)
            memcpy(&v[c], from + c * w->column_stride + depth, sizeof(v[c]));
        turn(v);
        memcpy(to, v, sizeof(v));
    }
}

static void pack_lines(const tern__amx_weight *w, char *tiles, int64_t column)
{
    char *to = tiles + column / ROWS * column_bytes(w);
    if (w->depth % DEPTH) memset(to, 0, (size_t)column_bytes(w));
    if (w->tile == TERN__AMX_TILE && w->taps == 1 && w->depth % DEPTH == 0)
        pack_words(w, to, column);
    else
        pack_line(w, tiles, spot_of(w, to, 0), column);
}

/* A block of depths for all columns, which are adjacent in memory. */
static void pack_depths(const tern__amx_weight *w, char *tiles, int64_t first)
{
    int64_t last = TERN__MIN(w->depth, first + DEPTH);
    for (int64_t column = 0; column < w->columns; column += ROWS) {
        spot s = spot_of(w, tiles + column / ROWS * column_bytes(w), first);
        if (last < first + DEPTH) memset(s.to, 0, (size_t)(w->taps * w->tile));
        if (has_gaps(w))
            pack_gaps(w, tiles, s, column, last);
        else if (w->taps == 1 && w->column_stride == 1)
            pack_columns(w, tiles, s, column, last);
        else
            pack_runs(w, tiles, s, column, last);
    }
}

void tern__amx_pack(const tern__amx_weight *w, int threads, char *tiles)
{
    bool lines = !has_gaps(w) && (w->depth_stride == w->taps || w->depth == 1);
    int64_t step = lines ? ROWS : DEPTH, all = lines ? w->columns : w->depth;
    (void)threads; /* unused without OpenMP */
    memset(tiles + groups_of(w) * column_bytes(w), 0, (size_t)groups_of(w) * sizeof(bool));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < all; i += step) (lines ? pack_lines : pack_depths)(w, tiles, i);
}
