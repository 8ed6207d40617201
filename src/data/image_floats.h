/* image_floats.h - turns an image's bytes (H, W, C) into a sample's floats (C, H, W). */
#ifndef TERN_SRC_DATA_IMAGE_FLOATS_H
#define TERN_SRC_DATA_IMAGE_FLOATS_H

#include "base/base.h"

/* to[c][i] = from[i][c] / 255, for `pixels` pixels of 1 or 3 channels. */
void tern__image_floats(const uint8_t *from, int channels, int64_t pixels, float *to);

#endif
