/* picture.h - pictures as samples: bytes (H, W, C) to floats (C, H, W). */
#ifndef TERN_SRC_DATA_PICTURE_H
#define TERN_SRC_DATA_PICTURE_H

#include "base/base.h"

/* to[c][i] = from[i][c] / 255, of `pixels` pixels of 1 or 3 channels. */
void tern__picture_floats(const uint8_t *from, int channels, int64_t pixels, float *to);

#endif
