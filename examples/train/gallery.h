/* gallery.h - pictures of what a model does: for TensorBoard, and at the end for the PNG above the curves. */
#ifndef TERN_EXAMPLES_GALLERY_H
#define TERN_EXAMPLES_GALLERY_H

#include <tern.h>

#define GALLERY_MAX 64

typedef struct gallery {
    tern_picture pictures[GALLERY_MAX];
    char captions[GALLERY_MAX][64];
    int count, across; /* pictures in a row: 3 for input, label and prediction */
} gallery;

/* Adds a picture; `marked` has the caption in red. Returns its pixels, rows * columns * channels (1 grey, 3
 * colours) to be filled; NULL without memory or room. */
uint8_t *gallery_add(gallery *g, int rows, int columns, int channels, bool marked, const char *caption, ...)
    __attribute__((format(printf, 6, 7)));
void gallery_free(gallery *g);
/* All pictures as one, "examples", on the board; nothing if they are of different sizes. */
void gallery_log(const gallery *g, tern_board *board, int64_t step);

/* pixels (rows, columns, channels) from x (channels, rows, columns) * std + mean, where 0 is black and 1 is
 * white; mean and std NULL: 0 and 1. NULL pixels are ignored, here and below. */
void gallery_image(uint8_t *pixels, const float *x, int rows, int columns, int channels, const float *mean,
                   const float *std);
/* pixels (count, 3): each label's colour, black for those outside [0, classes). */
void gallery_map(uint8_t *pixels, const uint8_t *labels, int64_t count, const uint8_t (*colours)[3],
                 int classes);

#endif
