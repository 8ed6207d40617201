/* resize.h - resizes images: bilinear with antialiasing, as Pillow and, with antialias, torchvision; and
 * nearest, for label maps. */
#ifndef TERN_SRC_IMAGE_RESIZE_H
#define TERN_SRC_IMAGE_RESIZE_H

#include "base/base.h"

/* A rectangle of an image. */
typedef struct tern__resize_window {
    int64_t top, left, height, width;
} tern__resize_window;

/* Scratch memory that one thread reuses. Starts zeroed. */
typedef struct tern__resizer {
    void *spaces[4];
    size_t bytes[4];
} tern__resizer;

void tern__resizer_free(tern__resizer *resizer);

/* Which part of the source is resized, to which size, and which part of the result is wanted. */
typedef struct tern__resize {
    tern__resize_window cut;  /* of the source                                */
    int64_t size[2];          /* height, width of the resized cut             */
    tern__resize_window part; /* of the resized cut; `to` has this part's size */
} tern__resize;

/* Resizes bytes; equal bit for bit to Pillow's resize of the cut. `from` has rows of `width` pixels of
 * `channels` bytes, 1 or 3, and 4 readable bytes after its end. `to` is (part.height, part.width, channels).
 * Fails with E_MEMORY only. */
int tern__resize_u8(tern__resizer *resizer, const uint8_t *from, int64_t width, int channels,
                    const tern__resize *how, uint8_t *to, const char *func, tern_error *err);
/* Resizes one plane of floats; equal up to rounding to torchvision's resize of a tensor with antialias. */
int tern__resize_f32(tern__resizer *resizer, const float *from, int64_t width, const tern__resize *how,
                     float *to, const char *func, tern_error *err);
/* Takes the nearest elements, of `bytes` bytes each; equal to Pillow's NEAREST of the cut. */
int tern__resize_nearest(tern__resizer *resizer, const void *from, int64_t width, size_t bytes,
                         const tern__resize *how, void *to, const char *func, tern_error *err);

#endif
