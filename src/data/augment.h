/* augment.h - what is to happen to a sample, and its parts. Sizes are depth, height, width; an image has a
 * depth of 1. */
#ifndef TERN_SRC_DATA_AUGMENT_H
#define TERN_SRC_DATA_AUGMENT_H

#include <tern/augment.h>

#include "base/base.h"

enum { TERN__BRIGHTNESS, TERN__CONTRAST, TERN__SATURATION, TERN__HUE, TERN__COLOURS };

typedef struct tern__change {
    int64_t size[3];  /* of the sample, resized                               */
    int64_t start[3]; /* where the cut begins in it, negative in the padding  */
    bool flip[3];
    int turns;
    double colour[TERN__COLOURS]; /* factors, and the angle              */
    int order[TERN__COLOURS];     /* of the changes, first to last       */
    float scale, shift;
} tern__change;

/* What the numbers of (seed, epoch, index) say, for samples of `size` and cuts of `cut`. */
tern__change tern__change_draw(const tern_augment_opts *opts, const int64_t size[3], const int64_t cut[3],
                               int64_t epoch, int64_t index);

/* One slice that is at hand: a part of what is cut, or all of it. */
typedef struct tern__image_slice {
    const void *data;
    int64_t origin[2]; /* of its first element in the whole; row, column */
    int64_t size[2];
    size_t bytes; /* of an element: 1, 4 or 8 */
} tern__image_slice;

/* Cuts, mirrors and turns a slice; `to` has cut[1] x cut[2] elements, those outside of it are `fill`. */
void tern__image_slice_cut(const tern__image_slice *slice, const tern__change *change, const int64_t cut[3],
                           const void *fill, void *to);

/* Changes colours, of `pixels` pixels of 1 or 3 channels. */
void tern__colours_change(const tern__change *change, int64_t channels, int64_t pixels, float *x);

#endif
