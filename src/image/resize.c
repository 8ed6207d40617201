/* resize.c - resizing in two passes, columns and then rows.
 *
 * A pixel of the result is the weighted mean of the pixels around its centre in the source. The weights are a
 * triangle, as wide as one pixel to either side or, where the picture becomes smaller, as many pixels as
 * become one; they are cut off at the edges and sum to 1. Each axis has its taps: for each place of the
 * result the first pixel, their number, and the weights. Bytes are summed in integers of 22 bits of fraction
 * and rounded after each pass, which is what Pillow does, so results are equal to its. */
#include "image/resize.h"

#include "kernels/kernel.h"

#include <math.h>
#include <string.h>

enum { COLUMNS, ROWS, BETWEEN, SUMS }; /* spaces */
enum { FRACTION = 22 };

typedef struct taps {
    int64_t most;   /* weights a place has room for */
    int64_t *first; /* (places)                     */
    int64_t *count; /* (places)                     */
    int32_t *fixed; /* (places, most): one or       */
    float *weights; /* the other                    */
} taps;

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

/* The weights of one place, not yet divided by their sum, which is returned. */
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

static void store(taps *t, int64_t place, const double *weights, double sum, bool fixed)
{
    for (int64_t i = 0; i < t->count[place]; i++) {
        double weight = weights[i] / sum;
        if (fixed)
            t->fixed[place * t->most + i] = (int32_t)(0.5 + weight * (1 << FRACTION));
        else
            t->weights[place * t->most + i] = (float)weight;
    }
}

/* Places [from, from + places) of `size`, which `length` pixels become. */
static int find_taps(tern__resizer *r, int which, int64_t length, int64_t size, int64_t from, int64_t places,
                     bool fixed, taps *t, const char *func, tern_error *err)
{
    double scale = (double)length / (double)size, reach = fmax(scale, 1);
    t->most = (int64_t)ceil(reach) * 2 + 1;
    size_t heads = (size_t)places * sizeof(int64_t), weights = (size_t)(places * t->most) * sizeof(int32_t);
    char *memory = space(r, which, (size_t)t->most * sizeof(double) + 2 * heads + weights, func, err);
    if (!memory) return TERN_E_MEMORY;
    double *row = (double *)(void *)memory;
    t->first = (int64_t *)(void *)(row + t->most);
    t->count = t->first + places;
    t->fixed = (int32_t *)(void *)(t->count + places);
    t->weights = (float *)t->fixed;
    for (int64_t i = 0; i < places; i++) {
        double centre = ((double)(from + i) + 0.5) * scale;
        t->first[i] = TERN__MAX((int64_t)(centre - reach + 0.5), 0);
        t->count[i] = TERN__MIN((int64_t)(centre + reach + 0.5), length) - t->first[i];
        store(t, i, row, weigh(row, t->first[i], t->count[i], centre, reach), fixed);
    }
    return TERN_OK;
}

/* The rows of the cut that any place of the rows' taps needs. */
static void find_rows(const taps *t, int64_t places, int64_t *first, int64_t *end)
{
    *first = t->first[0];
    *end = t->first[places - 1] + t->count[places - 1];
}

/* ---- bytes ---- */

typedef int32_t four __attribute__((vector_size(16)));
typedef uint8_t four_bytes __attribute__((vector_size(4)));

static inline uint8_t byte_of(int32_t sum)
{
    int32_t value = sum >> FRACTION;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* All channels of a pixel at once, with the first byte of the next one, which is overwritten by it. */
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
        to[i] = byte_of(sum);
    }
}

TERN__SIMD static void add_row(const uint8_t *from, int32_t weight, int64_t n, int32_t *sums)
{
    for (int64_t i = 0; i < n; i++) sums[i] += from[i] * weight;
}

TERN__SIMD static void round_row(const int32_t *sums, int64_t n, uint8_t *to)
{
    for (int64_t i = 0; i < n; i++) to[i] = byte_of(sums[i]);
}

static void merge_rows(const uint8_t *from, int64_t row, const taps *t, int64_t place, int32_t *sums,
                       uint8_t *to)
{
    for (int64_t i = 0; i < row; i++) sums[i] = 1 << (FRACTION - 1);
    for (int64_t k = 0; k < t->count[place]; k++)
        add_row(from + (t->first[place] + k) * row, t->fixed[place * t->most + k], row, sums);
    round_row(sums, row, to);
}

int tern__resize_u8(tern__resizer *r, const uint8_t *from, int64_t width, int channels,
                    const tern__resize *how, uint8_t *to, const char *func, tern_error *err)
{
    taps x, y;
    int64_t first, end, row = how->part.width * channels;
    if (find_taps(r, COLUMNS, how->cut.width, how->size[1], how->part.left, how->part.width, true, &x, func,
                  err) ||
        find_taps(r, ROWS, how->cut.height, how->size[0], how->part.top, how->part.height, true, &y, func,
                  err))
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
    if (find_taps(r, COLUMNS, how->cut.width, how->size[1], how->part.left, row, false, &x, func, err) ||
        find_taps(r, ROWS, how->cut.height, how->size[0], how->part.top, how->part.height, false, &y, func,
                  err))
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

/* The pixels, of `length` that become `size`, in which the centres of places [from, from + places) lie.
 * Centres are summed up from the first place on, as Pillow's: where one lies between two pixels, rounding
 * decides. */
static void find_nearest(int64_t length, int64_t size, int64_t from, int64_t places, int64_t *at)
{
    double step = (double)length / (double)size, centre = step * 0.5;
    for (int64_t i = 0; i < from; i++) centre += step;
    for (int64_t i = 0; i < places; i++, centre += step) at[i] = (int64_t)centre;
}

int tern__resize_nearest(tern__resizer *r, const void *from, int64_t width, size_t bytes,
                         const tern__resize *how, void *to, const char *func, tern_error *err)
{
    const tern__resize_window *part = &how->part;
    int64_t *columns = space(r, COLUMNS, (size_t)part->width * sizeof(int64_t), func, err);
    int64_t *rows = space(r, ROWS, (size_t)part->height * sizeof(int64_t), func, err);
    if (!columns || !rows) return TERN_E_MEMORY;
    find_nearest(how->cut.width, how->size[1], part->left, part->width, columns);
    find_nearest(how->cut.height, how->size[0], part->top, part->height, rows);
    const char *start = (const char *)from + (size_t)(how->cut.top * width + how->cut.left) * bytes;
    char *next = to;
    for (int64_t y = 0; y < part->height; y++)
        for (int64_t x = 0; x < part->width; x++, next += bytes)
            memcpy(next, start + (size_t)(rows[y] * width + columns[x]) * bytes, bytes);
    return TERN_OK;
}
