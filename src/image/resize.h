/* resize.h - pictures of another size: bilinear, over as many pixels as become one (Pillow's and, with
 * antialias, torchvision's), and the nearest, for maps of labels. */
#ifndef TERN_SRC_IMAGE_RESIZE_H
#define TERN_SRC_IMAGE_RESIZE_H

#include "base/base.h"

/* A rectangle of a picture. */
typedef struct tern__resize_window {
    int64_t top, left, height, width;
} tern__resize_window;

/* Memory that one thread uses again and again; zeroed, it has none yet. */
typedef struct tern__resizer {
    void *spaces[4];
    size_t bytes[4];
} tern__resizer;

void tern__resizer_free(tern__resizer *resizer);

/* What is resized, to what, and the part of the result that is wanted. */
typedef struct tern__resize {
    tern__resize_window cut;  /* of the source                            */
    int64_t size[2];          /* height, width that the cut becomes       */
    tern__resize_window part; /* of those; the result has part's size     */
} tern__resize;

/* `from` has rows of `width` pixels of `channels` bytes, 1 or 3, and 4 bytes more at its end that may be
 * read. `to` is (part.height, part.width, channels). Bit for bit Pillow's resize of the cut. E_MEMORY. */
int tern__resize_u8(tern__resizer *resizer, const uint8_t *from, int64_t width, int channels,
                    const tern__resize *how, uint8_t *to, const char *func, tern_error *err);
/* One plane. torchvision's resize of a tensor with antialias, to rounding. E_MEMORY. */
int tern__resize_f32(tern__resizer *resizer, const float *from, int64_t width, const tern__resize *how,
                     float *to, const char *func, tern_error *err);
/* The elements of `bytes` bytes that are nearest: Pillow's NEAREST of the cut. E_MEMORY. */
int tern__resize_nearest(tern__resizer *resizer, const void *from, int64_t width, size_t bytes,
                         const tern__resize *how, void *to, const char *func, tern_error *err);

#endif
