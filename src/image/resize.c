/* resize.c - resizes in two passes, columns and then rows.
 *
 * A pixel of the result is the weighted mean of the source's pixels around its centre. The weights form a
 * triangle. It reaches one pixel to either side or, when shrinking, as many pixels as become one. The weights
 * are cut off at the image's edges and sum to 1. Each axis has its taps: for each place of the result the
 * first pixel, the number of pixels, and their weights. Bytes are summed in fixed point with 22 fraction bits
 * and rounded after each pass. Pillow does the same, so the results are equal. */
#include "image/resize.h"

#include "kernels/kernel.h"

#include <math.h>
#include <string.h>

enum { COLUMNS, ROWS, BETWEEN, SUMS }; /* spaces */
enum { FRACTION = 22 };

typedef struct taps {
    int64_t most;   /* weights per place, at most */
    int64_t *first; /* (places)                     */
    int64_t *count; /* (places)                     */
    int32_t *fixed; /* (places, most), for bytes */
    float *weights; /* (places, most), for floats; same memory */
} taps;

/* One axis of a resize: `length` pixels become `size`, of which places [from, from + places) are wanted. */
typedef struct axis {
    int64_t length, size, from, places;
} axis;

static axis columns_of(const tern__resize *how)
{
    return (axis){how->cut.width, how->size[1], how->part.left, how->part.width};
}

static axis resize_rows_of(const tern__resize *how)
{
    return (axis){how->cut.height, how->size[0], how->part.top, how->part.height};
}

static void *space(tern__resizer *r, int which, size_t bytes, const char *func, tern_error *err)
{
    if (r->bytes[which] >= bytes && bytes) return r->spaces[which];
    tern__free(r->spaces[which]);
    r->spaces[which] = tern__alloc(bytes, func, err);
    r->bytes[which] = r->spaces[which] ? bytes : 0;
    return r->spaces[which];
}

void tern__resizer_free(tern__resizer *resizer)
{
    for (size_t i = 0; i < TERN__COUNT(resizer->spaces); i++) tern__free(resizer->spaces[i]);
    *resizer = (tern__resizer){0};
}

/* ---- taps ---- */

/* Computes the weights of one place and returns their sum, by which they are not yet divided. */
static double weigh(double *weights, int64_t first, int64_t count, double centre, double reach)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double distance = fabs(((double)(first + i) - centre + 0.5) * (1 / reach));
        weights[i] = distance < 1 ? 1 - distance : 0;
        sum += weights[i];
    }
    return sum;
}

static void resize_store(taps *t, int64_t place, const double *weights, double sum, bool fixed)
{
    for (int64_t i = 0; i < t->count[place]; i++) {
        double weight = weights[i] / sum;
        if (fixed)
            t->fixed[place * t->most + i] = (int32_t)(0.5 + weight * (1 << FRACTION));
        else
            t->weights[place * t->most + i] = (float)weight;
    }
}

/* Fills in the taps of an axis; they are in space `which`. */
static int find_taps(tern__resizer *r, int which, axis a, bool fixed, taps *t, const char *func,
                     tern_error *err)
{
    double scale = (double)a.length / (double)a.size, reach = fmax(scale, 1);
    t->most = (int64_t)ceil(reach) * 2 + 1;
    size_t heads = (size_t)a.places * sizeof(int64_t);
    size_t weights = (size_t)(a.places * t->most) * sizeof(int32_t);
    char *memory = space(r, which, (size_t)t->most * sizeof(double) + 2 * heads + weights, func, err);
    if (!memory) return TERN_E_MEMORY;
    double *row = (double *)(void *)memory;
    t->first = (int64_t *)(void *)(row + t->most);
    t->count = t->first + a.places;
    t->fixed = (int32_t *)(void *)(t->count + a.places);
    t->weights = (float *)t->fixed;
    for (int64_t i = 0; i < a.places; i++) {
        double centre = ((double)(a.from + i) + 0.5) * scale;
        t->first[i] = TERN__MAX((int64_t)(centre - reach + 0.5), 0);
        t->count[i] = TERN__MIN((int64_t)(centre + reach + 0.5), a.length) - t->first[i];
        resize_store(t, i, row, weigh(row, t->first[i], t->count[i], centre, reach), fixed);
    }
    return TERN_OK;
}

/* Finds the rows of the cut that the wanted places need. */
static void find_rows(const taps *t, int64_t places, int64_t *first, int64_t *end)
{
    *first = t->first[0];
    *end = t->first[places - 1] + t->count[places - 1];
}

/* ---- bytes ---- */

typedef int32_t four __attribute__((vector_size(16)));
typedef uint8_t four_bytes __attribute__((vector_size(4)));

static inline uint8_t resize_byte_of(int32_t sum)
{
    int32_t value = sum >> FRACTION;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Computes the three channels of a pixel at once, and a fourth byte, which the next pixel overwrites. */
TERN__SIMD static void squeeze_rgb(const uint8_t *from, const taps *t, int64_t places, uint8_t *to)
{
    for (int64_t i = 0; i < places; i++) {
        const int32_t *weights = t->fixed + i * t->most;
        const uint8_t *pixel = from + 3 * t->first[i];
        four sum = {1 << (FRACTION - 1), 1 << (FRACTION - 1), 1 << (FRACTION - 1), 1 << (FRACTION - 1)};
        for (int64_t k = 0; k < t->count[i]; k++) {
            four_bytes bytes;
            memcpy(&bytes, pixel + 3 * k, 4);
            sum += __builtin_convertvector(bytes, four) * weights[k];
        }
        four_bytes done = __builtin_convertvector(sum >> FRACTION, four_bytes);
        memcpy(to + 3 * i, &done, 4);
    }
}

static void squeeze_grey(const uint8_t *from, const taps *t, int64_t places, uint8_t *to)
{
    for (int64_t i = 0; i < places; i++) {
        int32_t sum = 1 << (FRACTION - 1);
        for (int64_t k = 0; k < t->count[i]; k++) sum += from[t->first[i] + k] * t->fixed[i * t->most + k];
        to[i] = resize_byte_of(sum);
    }
}

TERN__SIMD static void resize_add_row(const uint8_t *from, int32_t weight, int64_t n, int32_t *sums)
{
    for (int64_t i = 0; i < n; i++) sums[i] += from[i] * weight;
}

TERN__SIMD static void round_row(const int32_t *sums, int64_t n, uint8_t *to)
{
    for (int64_t i = 0; i < n; i++) to[i] = resize_byte_of(sums[i]);
}

static void merge_rows(const uint8_t *from, int64_t row, const taps *t, int64_t place, int32_t *sums,
                       uint8_t *to)
{
    for (int64_t i = 0; i < row; i++) sums[i] = 1 << (FRACTION - 1);
    for (int64_t k = 0; k < t->count[place]; k++)
        resize_add_row(from + (t->first[place] + k) * row, t->fixed[place * t->most + k], row, sums);
    round_row(sums, row, to);
}

int tern__resize_u8(tern__resizer *r, const uint8_t *from, int64_t width, int channels,
                    const tern__resize *how, uint8_t *to, const char *func, tern_error *err)
{
    taps x, y;
    int64_t first, end, row = how->part.width * channels;
    if (find_taps(r, COLUMNS, columns_of(how), true, &x, func, err) ||
        find_taps(r, ROWS, resize_rows_of(how), true, &y, func, err))
        return TERN_E_MEMORY;
    find_rows(&y, how->part.height, &first, &end);
    uint8_t *between = space(r, BETWEEN, (size_t)((end - first) * row) + 4, func, err);
    int32_t *sums = space(r, SUMS, (size_t)row * sizeof(int32_t), func, err);
    if (!between || !sums) return TERN_E_MEMORY;
    for (int64_t i = first; i < end; i++) {
        const uint8_t *line = from + ((how->cut.top + i) * width + how->cut.left) * channels;
        (channels == 3 ? squeeze_rgb : squeeze_grey)(line, &x, how->part.width, between + (i - first) * row);
    }
    for (int64_t i = 0; i < how->part.height; i++)
        merge_rows(between - first * row, row, &y, i, sums, to + i * row);
    return TERN_OK;
}

/* ---- floats ---- */

TERN__SIMD static void squeeze_plane(const float *from, const taps *t, int64_t places, float *to)
{
    for (int64_t i = 0; i < places; i++) {
        float sum = 0;
        for (int64_t k = 0; k < t->count[i]; k++) sum += from[t->first[i] + k] * t->weights[i * t->most + k];
        to[i] = sum;
    }
}

TERN__SIMD static void add_line(const float *from, float weight, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++) to[i] += from[i] * weight;
}

int tern__resize_f32(tern__resizer *r, const float *from, int64_t width, const tern__resize *how, float *to,
                     const char *func, tern_error *err)
{
    taps x, y;
    int64_t first, end, row = how->part.width;
    if (find_taps(r, COLUMNS, columns_of(how), false, &x, func, err) ||
        find_taps(r, ROWS, resize_rows_of(how), false, &y, func, err))
        return TERN_E_MEMORY;
    find_rows(&y, how->part.height, &first, &end);
    float *between = space(r, BETWEEN, (size_t)((end - first) * row) * sizeof(float), func, err);
    if (!between) return TERN_E_MEMORY;
    for (int64_t i = first; i < end; i++)
        squeeze_plane(from + (how->cut.top + i) * width + how->cut.left, &x, row,
                      between + (i - first) * row);
    memset(to, 0, (size_t)(how->part.height * row) * sizeof(float));
    for (int64_t i = 0; i < how->part.height; i++)
        for (int64_t k = 0; k < y.count[i]; k++)
            add_line(between + (y.first[i] - first + k) * row, y.weights[i * y.most + k], row, to + i * row);
    return TERN_OK;
}

/* ---- labels ---- */

/* For each place of the axis, finds the pixel that holds its centre. Centres are summed from the first place
 * on, as in Pillow: where a centre is on the border of two pixels, rounding decides. */
static void find_nearest(axis a, int64_t *at)
{
    double step = (double)a.length / (double)a.size, centre = step * 0.5;
    for (int64_t i = 0; i < a.from; i++) centre += step;
    for (int64_t i = 0; i < a.places; i++, centre += step) at[i] = (int64_t)centre;
}

int tern__resize_nearest(tern__resizer *r, const void *from, int64_t width, size_t bytes,
                         const tern__resize *how, void *to, const char *func, tern_error *err)
{
    const tern__resize_window *part = &how->part;
    int64_t *columns = space(r, COLUMNS, (size_t)part->width * sizeof(int64_t), func, err);
    int64_t *rows = space(r, ROWS, (size_t)part->height * sizeof(int64_t), func, err);
    if (!columns || !rows) return TERN_E_MEMORY;
    find_nearest(columns_of(how), columns);
    find_nearest(resize_rows_of(how), rows);
    const char *start = (const char *)from + (size_t)(how->cut.top * width + how->cut.left) * bytes;
    char *next = to;
    for (int64_t y = 0; y < part->height; y++)
        for (int64_t x = 0; x < part->width; x++, next += bytes)
            memcpy(next, start + (size_t)(rows[y] * width + columns[x]) * bytes, bytes);
    return TERN_OK;
}
