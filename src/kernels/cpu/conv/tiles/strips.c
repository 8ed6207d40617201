/* strips.c - copies activations into strips of tiles. */
#include "kernels/cpu/conv/tiles/strips.h"
#include "kernels/cpu/lanes.h"

#define ROWS  TERN__AMX_ROWS
#define DEPTH TERN__AMX_DEPTH

TERN__DEFINE_TURN(turn, tern__words)

/* ---- the source of a strip ---- */

/* The places in the source of a strip's columns. A piece has columns from slabs that begin at the same
 * sheet and row of their images: all or none of them are inside the source. */
typedef struct sight {
    const tern__strips *s;
    int64_t offset[2];  /* source sheet and row read for y's first ones */
    int64_t at[DEPTH];  /* offset in elements from there */
    uint32_t there;     /* columns that are not padding */
    uint8_t run[DEPTH]; /* how many columns from this one on are adjacent in the source */
    int pieces;
    struct {
        uint32_t columns;
        int64_t start[2];
    } piece[DEPTH];
} sight;

static int64_t image_size(const tern__strips *s)
{
    return s->axis[0].source * s->axis[1].source * s->axis[2].source;
}

/* The number of adjacent values of a position. */
static int64_t together_of(const tern__strips *s)
{
    return s->view->layout == TERN__BLOCKED16 ? ROWS : 1;
}

/* `start`: where their slab begins in the source. */
static void add_to_piece(sight *g, uint32_t columns, const int64_t start[2])
{
    int last = g->pieces - 1;
    if (last < 0 || memcmp(g->piece[last].start, start, sizeof(g->piece[last].start)) != 0) {
        last = g->pieces++;
        g->piece[last].columns = 0;
        memcpy(g->piece[last].start, start, sizeof(g->piece[last].start));
    }
    g->piece[last].columns |= columns;
}

/* Adds slab `number` from its column `place` on; returns the strip's first column after it. */
static int add_slab(sight *g, int64_t number, int64_t place, int64_t column, int i)
{
    const tern__strip_slabs *slabs = g->s->slabs;
    const tern__axis *a = g->s->axis;
    int64_t parts = slabs->count[0] * slabs->count[1], part = number % parts;
    int64_t start[2] = {part / slabs->count[1] * slabs->size[0] * a[0].stride,
                        part % slabs->count[1] * slabs->size[1] * a[1].stride};
    int64_t together = together_of(g->s), row = (start[0] * a[1].source + start[1]) * a[2].source;
    int64_t image = number / parts * g->s->view->shape[1] * image_size(g->s);
    int64_t from = place * a[2].stride + column * a[2].dilation - a[2].padding;
    int first = i, end = (int)TERN__MIN(DEPTH, i + slabs->width - place);
    for (; i < end; i++, from += a[2].stride) {
        g->at[i] = image + (row + from) * together;
        g->there |= (uint32_t)(from >= 0 && from < a[2].source) << i;
    }
    add_to_piece(g, (uint32_t)((UINT64_C(1) << end) - (UINT64_C(1) << first)), start);
    return end;
}

static void find_runs(sight *g)
{
    for (int i = DEPTH - 1, n = 0; i >= 0; i--) {
        n = i + 1 < DEPTH && g->at[i + 1] == g->at[i] + g->s->axis[2].stride ? n + 1 : 1;
        g->run[i] = (uint8_t)n;
    }
}

/* The source of a strip for column `column` of the kernel; `offset` is as above. */
static sight sight_of(const tern__strips *s, tern__slab_range range, int64_t strip, int64_t column,
                      const int64_t offset[2])
{
    sight g = {.s = s, .offset = {offset[0], offset[1]}};
    int64_t number = strip * DEPTH / s->slabs->width, place = strip * DEPTH % s->slabs->width;
    for (int i = 0; i < DEPTH && number < range.count; number++, place = 0)
        i = add_slab(&g, range.first + number, place, column, i);
    if (s->view->layout == TERN__PLAIN) find_runs(&g);
    return g;
}

/* A row of a strip: the columns that are inside the source, and their offset from the strip's places. */
typedef struct line {
    uint32_t there;
    int64_t at;
} line;

static line strips_line_of(const sight *g, int64_t sheet, int64_t row)
{
    const tern__axis *a = g->s->axis;
    int64_t z = sheet * a[0].stride + g->offset[0], y = row * a[1].stride + g->offset[1];
    line l = {.at = (z * a[1].source + y) * a[2].source * together_of(g->s)};
    for (int i = 0; i < g->pieces; i++) {
        int64_t in_z = g->piece[i].start[0] + z, in_y = g->piece[i].start[1] + y;
        if (in_z >= 0 && in_z < a[0].source && in_y >= 0 && in_y < a[1].source)
            l.there |= g->piece[i].columns;
    }
    l.there &= g->there;
    return l;
}

/* ---- blocked: a position's 16 channels are adjacent ---- */

static const float nothing[ROWS];

/* The values of a position, or zeros. */
TERN__INLINE const void *place_of(const sight *g, const char *from, uint32_t there, int i, int64_t bytes)
{
    return there >> i & 1 ? from + g->at[i] * bytes : (const char *)nothing;
}

/* Reads pairs of positions, each 16 channels of two values; of floats returns bits of large ones. */
TERN__INLINE void pairs_of_halves(const sight *g, const char *from, uint32_t there, tern__words v[ROWS])
{
    for (int i = 0; i < ROWS; i++) {
        tern__halves even, odd;
        memcpy(&even, place_of(g, from, there, 2 * i, 2), sizeof(even));
        memcpy(&odd, place_of(g, from, there, 2 * i + 1, 2), sizeof(odd));
        v[i] = __builtin_convertvector(even, tern__words) | __builtin_convertvector(odd, tern__words) << 16;
    }
}

TERN__INLINE tern__words pairs_of_floats(const sight *g, const char *from, uint32_t there,
                                         tern__words high[ROWS], tern__words low[ROWS])
{
    tern__words large = {0};
    for (int i = 0; i < ROWS; i++) {
        const float *even = place_of(g, from, there, 2 * i, 4);
        const float *odd = place_of(g, from, there, 2 * i + 1, 4);
        tern__lanes first = tern__lanes_load(even, ROWS), second = tern__lanes_load(odd, ROWS);
        tern__word_parts a = tern__lanes_split_words(first), b = tern__lanes_split_words(second);
        large |= tern__lanes_large(first) | tern__lanes_large(second);
        high[i] = a.high >> 16 | (b.high & 0xffff0000);
        low[i] = a.low >> 16 | (b.low & 0xffff0000);
    }
    return large;
}

TERN__INLINE void tile_store(tern__words v[ROWS], bool by_channel, char *tile)
{
    if (by_channel) turn(v);
    memcpy(tile, v, TERN__AMX_TILE);
}

/* Fills a tile, and in f32 that of the low parts. Adds to the bits of large floats. */
TERN__INLINE void fill_blocked(const sight *g, const char *from, uint32_t there, bool by_channel, char *tile,
                               tern__words *large)
{
    tern__words v[ROWS], low[ROWS];
    if (g->s->view->dtype == TERN_BF16) {
        pairs_of_halves(g, from, there, v);
    } else {
        *large |= pairs_of_floats(g, from, there, v, low);
        tile_store(low, by_channel, tile + TERN__AMX_TILE);
    }
    tile_store(v, by_channel, tile);
}

TERN__AMX_SIMD static void fill_pairs(const sight *g, const char *from, uint32_t there, char *tile,
                                      tern__words *large)
{
    fill_blocked(g, from, there, false, tile, large);
}

TERN__AMX_SIMD static void fill_channels(const sight *g, const char *from, uint32_t there, char *tile,
                                         tern__words *large)
{
    fill_blocked(g, from, there, true, tile, large);
}

/* The address of a channel, or of the 16 from it on. */
static const char *strips_channel_of(const tern__strips *s, int64_t channel)
{
    return (const char *)s->view->data + channel * image_size(s) * s->bytes;
}

static void fill_block(const sight *g, int64_t channel, char *tile, tern__words *large)
{
    const tern__strips *s = g->s;
    const char *from = strips_channel_of(s, channel);
    for (int64_t sheet = 0; sheet < s->rows[0]; sheet++)
        for (int64_t row = 0; row < s->rows[1]; row++, tile += s->tile) {
            line l = strips_line_of(g, sheet, row);
            if (!l.there)
                memset(tile, 0, (size_t)s->tile);
            else
                (s->by_channel ? fill_channels : fill_pairs)(g, from + l.at * s->bytes, l.there, tile, large);
        }
}

/* ---- plain: a channel's positions are adjacent ---- */

/* Reads n values of 16 or 32 bits, `step` apart. */
#define DEFINE_TAKE(name, type)                                                                              \
    TERN__AMX_SIMD static void name(type *to, const type *from, int n, int64_t step)                         \
    {                                                                                                        \
        if (step == 1)                                                                                       \
            for (int i = 0; i < n; i++) to[i] = from[i];                                                     \
        else if (step == 2)                                                                                  \
            for (int i = 0; i < n; i++) to[i] = from[2 * i];                                                 \
        else                                                                                                 \
            for (int i = 0; i < n; i++) to[i] = from[step * i];                                              \
    }
DEFINE_TAKE(take_halves, uint16_t)
DEFINE_TAKE(take_floats, float)

/* Reads the columns of one channel, adjacent ones together. */
static void read_line(const sight *g, const char *from, uint32_t there, char *to)
{
    int64_t step = g->s->axis[2].stride, bytes = g->s->bytes;
    for (uint64_t rest = there; rest;) {
        int first = __builtin_ctzll(rest), n = TERN__MIN(g->run[first], __builtin_ctzll(~(rest >> first)));
        if (bytes == 4)
            take_floats((float *)to + first, (const float *)from + g->at[first], n, step);
        else
            take_halves((uint16_t *)to + first, (const uint16_t *)from + g->at[first], n, step);
        rest &= ~(((UINT64_C(1) << n) - 1) << first);
    }
}

TERN__AMX_SIMD static void split_row(const float *from, char *high, char *low, tern__words *large)
{
    for (int i = 0; i < DEPTH; i += ROWS) {
        tern__lanes v = tern__lanes_load(from + i, ROWS);
        tern__lane_parts p = tern__lanes_split(v);
        *large |= tern__lanes_large(v);
        memcpy(high + 2 * i, &p.high, sizeof(p.high));
        memcpy(low + 2 * i, &p.low, sizeof(p.low));
    }
}

/* Writes a channel, which is a row of every tile of the strip; tiles are zero before. */
static void fill_channel(const sight *g, int64_t channel, char *to, tern__words *large)
{
    const tern__strips *s = g->s;
    const char *from = strips_channel_of(s, channel);
    for (int64_t sheet = 0; sheet < s->rows[0]; sheet++)
        for (int64_t row = 0; row < s->rows[1]; row++, to += s->tile) {
            line l = strips_line_of(g, sheet, row);
            if (s->bytes == 4) {
                float values[DEPTH] = {0};
                read_line(g, from + l.at * s->bytes, l.there, (char *)values);
                split_row(values, to, to + TERN__AMX_TILE, large);
            } else {
                read_line(g, from + l.at * s->bytes, l.there, to);
            }
        }
}

TERN__AMX_SIMD static void turn_tile(char *tile)
{
    tern__words v[ROWS];
    memcpy(v, tile, sizeof(v));
    turn(v);
    memcpy(tile, v, sizeof(v));
}

/* Splits an unfolded channel into the source's channel and the kernel's tap. */
static sight unfolded_sight(const tern__strips *s, tern__slab_range range, int64_t strip, int64_t *channel)
{
    int64_t at[3];
    for (int d = 2; d >= 0; *channel /= s->axis[d--].kernel) at[d] = *channel % s->axis[d].kernel;
    int64_t offset[2];
    for (int d = 0; d < 2; d++) offset[d] = at[d] * s->axis[d].dilation - s->axis[d].padding;
    return sight_of(s, range, strip, at[2], offset);
}

/* ---- strips ---- */

tern__strips tern__strips_of(const tern__conv_attr *attr, const tern__view *x, const tern__view *y,
                             const tern__view *w, const tern__strip_slabs *slabs)
{
    tern__strips s = {.view = x, .slabs = slabs, .channels = x->shape[1], .copies = 1};
    s.bytes = (int64_t)tern_dtype_bytes(x->dtype);
    s.tile = s.bytes / 2 * TERN__AMX_TILE;
    for (int d = 0; d < 3; d++) s.axis[d] = tern__axis_of(attr, d, x, y, w, false);
    for (int d = 0; d < 2; d++) {
        s.rows[d] = slabs->size[d] + s.axis[d].size - s.axis[d].target;
        s.phases[d] = s.axis[d].kernel > 1 ? s.axis[d].stride : 1;
        s.copies *= s.phases[d];
    }
    s.copies *= s.axis[2].kernel;
    return s;
}

void tern__strips_unfold(tern__strips *s)
{
    s->unfolded = true;
    s->copies = 1;
    for (int d = 0; d < 3; d++) s->channels *= s->axis[d].kernel;
    for (int d = 0; d < 2; d++) {
        s->rows[d] = s->slabs->size[d];
        s->phases[d] = 1;
    }
}

void tern__strips_tap(const tern__strips *s, int64_t tap, int64_t *copy, int64_t *row)
{
    int64_t column = tap % s->axis[2].kernel, phase[2], shift[2], at[2];
    tap /= s->axis[2].kernel;
    at[0] = tap / s->axis[1].kernel;
    at[1] = tap % s->axis[1].kernel;
    for (int d = 0; d < 2; d++) tern__axis_tap(&s->axis[d], 0, at[d], &phase[d], &shift[d]);
    *copy = (phase[0] * s->phases[1] + phase[1]) * s->axis[2].kernel + column;
    *row = shift[0] * s->rows[1] + shift[1];
}

static sight copy_sight(const tern__strips *s, tern__slab_range range, int64_t copy, int64_t strip)
{
    int64_t phase = copy / s->axis[2].kernel;
    int64_t offset[2] = {phase / s->phases[1] - s->axis[0].padding,
                         phase % s->phases[1] - s->axis[1].padding};
    return sight_of(s, range, strip, copy % s->axis[2].kernel, offset);
}

static void fill_plain(const tern__strips *s, tern__slab_range range, int64_t first, int64_t copy,
                       int64_t strip, char *tiles, tern__words *large)
{
    int64_t bytes = tern__strips_height(s) * s->tile;
    sight g = copy_sight(s, range, copy, strip);
    memset(tiles, 0, (size_t)bytes);
    for (int64_t c = 0; c < TERN__MIN(ROWS, s->channels - first); c++) {
        int64_t channel = first + c;
        if (s->unfolded) g = unfolded_sight(s, range, strip, &channel);
        fill_channel(&g, channel, tiles + c * 2 * DEPTH, large);
    }
    for (int64_t at = 0; at < bytes && !s->by_channel; at += TERN__AMX_TILE) turn_tile(tiles + at);
}

bool tern__strips_fill(const tern__strips *s, tern__slab_range range, int64_t channel, int64_t copy,
                       int64_t strip, char *tiles)
{
    tern__words large = {0};
    if (s->view->layout == TERN__PLAIN) {
        fill_plain(s, range, channel, copy, strip, tiles, &large);
    } else {
        sight g = copy_sight(s, range, copy, strip);
        fill_block(&g, channel, tiles, &large);
    }
    return tern__words_have_large(large);
}
