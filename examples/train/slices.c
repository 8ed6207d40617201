/* slices.c - extracts slices from volumes and adds them to a gallery. */
#include "slices.h"

#include <stdio.h>
#include <stdlib.h>

void slices_add(gallery *g, const volumes *v, const float *image, const uint8_t *truth, const uint8_t *guess,
                int rows, int columns, const char *of)
{
    int64_t count = (int64_t)rows * columns;
    float low = image[0], high = image[0], scale[2];
    for (int64_t i = 1; i < count; i++) {
        low = image[i] < low ? image[i] : low;
        high = image[i] > high ? image[i] : high;
    }
    scale[1] = high > low ? 1 / (high - low) : 1;
    scale[0] = -low * scale[1];
    gallery_image(gallery_add(g, rows, columns, 1, false, "%s", of), image, rows, columns, 1, &scale[0],
                  &scale[1]);
    gallery_map(gallery_add(g, rows, columns, 3, false, "label"), truth, count, v->legend, volumes_labels(v));
    gallery_map(gallery_add(g, rows, columns, 3, false, "prediction"), guess, count, v->legend,
                volumes_labels(v));
    g->legend = v->legend;
    g->legend_count = volumes_labels(v);
}

/* Flips the images vertically, as viewers do: the first row is the farthest back and is shown at the bottom.
 */
static void turn_images(const gallery *g, int first)
{
    for (int i = first; i < g->count; i++) {
        const tern_picture *p = &g->pictures[i];
        size_t row = (size_t)p->columns * (size_t)p->channels;
        uint8_t *pixels = (uint8_t *)p->pixels, kept;
        for (size_t y = 0; y < (size_t)p->rows / 2; y++)
            for (size_t k = 0; k < row; k++) {
                uint8_t *above = pixels + y * row + k, *below = pixels + ((size_t)p->rows - 1 - y) * row + k;
                kept = *above, *above = *below, *below = kept;
            }
    }
}

/* The layout of slices across the shortest side of a volume. */
typedef struct cut {
    int64_t sides[3], strides[3]; /* of the slice's number, rows, columns */
} cut;

static cut cut_of(const tern_volume *volume)
{
    const int64_t *s = volume->shape + 1, strides[3] = {s[1] * s[2], s[2], 1};
    int across = s[2] < s[0] && s[2] < s[1] ? 2 : s[1] < s[0] ? 1 : 0, at = 1;
    cut c = {{s[across]}, {strides[across]}};
    for (int d = 0; d < 3; d++)
        if (d != across) c.sides[at] = s[d], c.strides[at++] = strides[d];
    return c;
}

/* Returns the slice in [first, end) with the most voxels that are not background. */
static int64_t fullest(const cut *c, const uint8_t *labels, int64_t first, int64_t end)
{
    int64_t best = first, most = -1;
    for (int64_t i = first; i < end; i++) {
        int64_t count = 0;
        for (int64_t v = 0; v < c->sides[1] * c->sides[2]; v++)
            count += labels[i * c->strides[0] + v / c->sides[2] * c->strides[1] +
                            v % c->sides[2] * c->strides[2]] > 0;
        if (count > most) most = count, best = i;
    }
    return best;
}

typedef struct slice {
    float *image;
    uint8_t *truth, *guess;
} slice;

static void copy_slice(const cut *c, int64_t i, const float *image, const uint8_t *truth,
                       const uint8_t *guess, slice *to)
{
    for (int64_t v = 0; v < c->sides[1] * c->sides[2]; v++) {
        int64_t from = i * c->strides[0] + v / c->sides[2] * c->strides[1] + v % c->sides[2] * c->strides[2];
        to->image[v] = image[from];
        to->truth[v] = truth[from];
        to->guess[v] = guess[from];
    }
}

void slices_of(gallery *g, const volumes *v, const tern_volume *image, const uint8_t *truth,
               const uint8_t *guess)
{
    cut c = cut_of(image);
    size_t plane = (size_t)(c.sides[1] * c.sides[2]);
    slice s = {malloc(plane * sizeof(float)), malloc(plane), malloc(plane)};
    int first = g->count;
    for (int half = 0; s.image && s.truth && s.guess && half < 2; half++) {
        int64_t middle = c.sides[0] / 2, end = half ? c.sides[0] : middle;
        int64_t i = fullest(&c, truth, half ? middle : 0, end);
        char of[32];
        snprintf(of, sizeof(of), "slice %lld", (long long)i);
        copy_slice(&c, i, image->values, truth, guess, &s);
        slices_add(g, v, s.image, s.truth, s.guess, (int)c.sides[1], (int)c.sides[2], of);
    }
    turn_images(g, first);
    free(s.image);
    free(s.truth);
    free(s.guess);
}
