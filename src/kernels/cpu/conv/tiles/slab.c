/* slab.c - copies slabs of the source into planes. */
#include "kernels/cpu/conv/tiles/slab.h"
#include "kernels/cpu/lanes.h"

#define ROWS TERN__AMX_ROWS

TERN__DEFINE_TURN(turn_halves, tern__halves)
TERN__DEFINE_TURN(turn_words, tern__words)

/* Copies 16 channels of a place; adds to the bits of large floats (NULL: they are known). */
TERN__INLINE void put_place(const tern__slabs *s, char *to, const void *from, bool is_f32, tern__words *large)
{
    tern__halves h;
    memcpy(&h, from, sizeof(h));
    if (is_f32) {
        tern__lanes v = tern__lanes_load(from, ROWS);
        tern__lane_parts parts = tern__lanes_split(v);
        if (large) *large |= tern__lanes_large(v);
        h = parts.high;
        memcpy(to + s->low, &parts.low, sizeof(h));
    }
    memcpy(to, &h, sizeof(h));
}

/* Copies positions first .. last - 1 of `images` images, `apart` bytes from each other. */
TERN__INLINE void put_row(const tern__slabs *s, char *to, const char *from, int64_t phase, int64_t images,
                          int64_t apart, bool is_f32, tern__words *large)
{
    const tern__axis *a = &s->p.axis[2];
    int64_t first, last, bytes = ROWS * (is_f32 ? 4 : 2);
    tern__words in_row = *large;
    tern__axis_range(a, phase, &first, &last);
    from += (phase - a->margin) * bytes;
    for (int64_t i = first; i < last; i++)
        for (int64_t n = 0; n < images; n++)
            put_place(s, to + (i * s->together + n) * s->wide, from + i * a->step * bytes + n * apart, is_f32,
                      &in_row);
    *large = in_row;
}

TERN__AMX_SIMD static void copy_row(const tern__slabs *s, char *to, const char *from, int64_t phase,
                                    int64_t images, int64_t apart, tern__words *large)
{
    if (s->low)
        put_row(s, to, from, phase, images, apart, true, large);
    else
        put_row(s, to, from, phase, images, apart, false, large);
}

/* Writes n places of 16 channels from `values`, which has rows of 16 values per channel. */
TERN__INLINE void put_turned(const tern__slabs *s, char *to, const void *values, int64_t n,
                             tern__words *large)
{
    if (s->low) {
        tern__words v[ROWS], all = *large;
        memcpy(v, values, sizeof(v));
        for (int c = 0; c < ROWS; c++) all |= tern__lanes_large((tern__lanes)v[c]);
        *large = all;
        turn_words(v);
        for (int64_t l = 0; l < n; l++) put_place(s, to + l * s->wide, &v[l], true, NULL);
    } else {
        tern__halves v[ROWS];
        memcpy(v, values, sizeof(v));
        turn_halves(v);
        for (int64_t l = 0; l < n; l++) put_place(s, to + l * s->wide, &v[l], false, NULL);
    }
}

/* Reads up to 16 values of `bytes` bytes, `step` values apart. */
TERN__INLINE void read_values(char *to, const char *from, int64_t step, int64_t n, size_t bytes)
{
    if (step == 1 && n == ROWS)
        memcpy(to, from, ROWS * bytes);
    else
        for (int64_t l = 0; l < n; l++)
            memcpy(to + l * (int64_t)bytes, from + l * step * (int64_t)bytes, bytes);
}

/* Copies a row of `count` channels, which are `size` values apart. */
TERN__AMX_SIMD static void copy_plain_row(const tern__slabs *s, char *to, const char *from, int64_t phase,
                                          int64_t size, int64_t count, tern__words *large)
{
    const tern__axis *a = &s->p.axis[2];
    int64_t first, last, bytes = s->low ? 4 : 2;
    tern__axis_range(a, phase, &first, &last);
    from += (phase - a->margin) * bytes;
    for (int64_t i = first; i < last; i += ROWS) {
        char values[ROWS * ROWS * 4] = {0};
        int64_t n = TERN__MIN(ROWS, last - i);
        for (int64_t c = 0; c < count; c++) {
            const char *row = from + (c * size + i * a->step) * bytes;
            if (s->low)
                read_values(values + c * ROWS * 4, row, a->step, n, 4);
            else
                read_values(values + c * ROWS * 2, row, a->step, n, 2);
        }
        put_turned(s, to + i * s->wide, values, n, large);
    }
}

/* Copies a plane's row of 16 channels for a bunch of images; `at` is its place in the source. */
static void copy_channels(const tern__slabs *s, char *to, int64_t image, int64_t channel, int64_t at,
                          int64_t phase, tern__words *large)
{
    const tern__view *v = s->source;
    const tern__axis *a = s->p.axis;
    int64_t size = a[0].source * a[1].source * a[2].source, bytes = s->low ? 4 : 2;
    const char *from = (const char *)v->data + (image * v->shape[1] + channel) * size * bytes;
    if (v->layout == TERN__BLOCKED16)
        copy_row(s, to, from + at * ROWS * bytes, phase, TERN__MIN(s->together, v->shape[0] - image),
                 v->shape[1] * size * bytes, large);
    else
        copy_plain_row(s, to, from + at * bytes, phase, size, TERN__MIN(ROWS, v->shape[1] - channel), large);
}

/* Copies a plane: up to 32 channels from the first. */
static void copy_plane(const tern__slabs *s, char *to, int64_t image, int64_t sheet, int64_t phase,
                       int64_t first, tern__words *large)
{
    const tern__tile_planes *p = &s->p;
    int64_t last = TERN__MIN(first + 32, s->source->shape[1]);
    for (int64_t i = 0; i < (s->deep + p->more) * p->axis[1].size; i++, to += s->row) {
        int64_t at = tern__planes_row(p, phase, sheet + i / p->axis[1].size, i % p->axis[1].size);
        /* Clears padding that another slab has overwritten. */
        if (at < 0 && s->each > 1) {
            memset(to, 0, (size_t)s->row);
            if (s->low) memset(to + s->low, 0, (size_t)s->row);
        }
        for (int64_t c = first; c < last && at >= 0; c += ROWS)
            copy_channels(s, to + (c - first) * 2, image, c, at, phase % p->axis[2].step, large);
    }
}

/* Copies a row of the unfolded source: 16 channels from the first. */
TERN__AMX_SIMD static void copy_unfolded_row(const tern__slabs *s, char *to, int64_t n,
                                             const int64_t place[2], int64_t first, tern__words *large)
{
    int64_t width = s->p.axis[2].target, count = TERN__MIN(ROWS, s->unfold->count - first);
    tern__unfold_row rows[ROWS];
    for (int64_t c = 0; c < count; c++) rows[c] = tern__unfold_row_of(s->unfold, n, first + c, place, width);
    for (int64_t i = 0; i < width; i += ROWS) {
        char values[ROWS * ROWS * 4] = {0};
        for (int64_t c = 0; c < count; c++)
            if (s->low)
                tern__unfold_read(s->unfold, &rows[c], i, i + ROWS, 4, values + c * ROWS * 4);
            else
                tern__unfold_read(s->unfold, &rows[c], i, i + ROWS, 2, values + c * ROWS * 2);
        put_turned(s, to + i * s->wide, values, TERN__MIN(ROWS, width - i), large);
    }
}

static void copy_unfolded(const tern__slabs *s, char *planes, int64_t n, int64_t sheet, tern__words *large)
{
    int64_t height = s->p.axis[1].target;
    for (int64_t i = 0; i < s->deep * height; i++)
        for (int64_t first = 0; first < s->unfold->count; first += ROWS)
            copy_unfolded_row(s, planes + i * s->row + 2 * first, n,
                              (int64_t[]){sheet + i / height, i % height}, first, large);
}

bool tern__slab_copy(const tern__slabs *s, int64_t n, char *planes)
{
    int64_t image = n / s->each * s->together, sheet = n % s->each * s->deep;
    tern__words large = {0};
    if (s->unfold)
        copy_unfolded(s, planes, image, sheet, &large);
    else
        for (int64_t phase = 0; phase < s->p.phases; phase++)
            for (int64_t b = 0; b < s->blocks; b++, planes += s->plane)
                copy_plane(s, planes, image, sheet, phase, 32 * b, &large);
    return tern__words_have_large(large);
}
