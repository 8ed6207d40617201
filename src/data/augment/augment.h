/* augment.h - the random changes of a sample, and the functions that apply them. Sizes are depth, height,
 * width; an image has depth 1. */
#ifndef TERN_SRC_DATA_AUGMENT_H
#define TERN_SRC_DATA_AUGMENT_H

#include <tern/augment.h>

#include "base/base.h"

enum { TERN__BRIGHTNESS, TERN__CONTRAST, TERN__SATURATION, TERN__HUE, TERN__COLOURS };

typedef struct tern__change {
    int64_t size[3];  /* of the resized sample                                  */
    int64_t start[3]; /* of the crop in the resized sample; negative in padding */
    bool flip[3];
    int turns;                    /* by 90 degrees */
    double colour[TERN__COLOURS]; /* factors; for the hue the angle, in turns */
    int order[TERN__COLOURS];     /* in which the colour changes are applied  */
    float scale, shift;
} tern__change;

/* Draws the changes of sample `index` in `epoch`, for samples of `size` and crops of `cut`. */
tern__change tern__change_draw(const tern_augment_opts *opts, const int64_t size[3], const int64_t cut[3],
                               int64_t epoch, int64_t index);

/* A slice to cut from. Resizing makes only the part of it that the crop needs. */
typedef struct tern__image_slice {
    const void *data;
    int64_t origin[2]; /* row, column of data[0] in the whole slice */
    int64_t size[2];
    size_t bytes; /* per element: 1, 4 or 8 */
} tern__image_slice;

/* Crops, mirrors and turns a slice. `to` has cut[1] x cut[2] elements; those outside the slice become `fill`.
 */
void tern__image_slice_cut(const tern__image_slice *slice, const tern__change *change, const int64_t cut[3],
                           const void *fill, void *to);

/* Changes the colours of `pixels` pixels of 1 or 3 channels. */
void tern__colours_change(const tern__change *change, int64_t channels, int64_t pixels, float *x);

#endif
