/* image_floats.c - turns bytes (H, W, C) into floats (C, H, W). */
#include "data/image_floats.h"

#include "kernels/kernel.h"

TERN__SIMD static void floats_of_grey(const uint8_t *from, int64_t pixels, float *to)
{
    for (int64_t i = 0; i < pixels; i++) to[i] = (float)from[i] / 255.0f;
}

TERN__SIMD static void floats_of_rgb(const uint8_t *from, int64_t pixels, float *to)
{
    for (int64_t i = 0; i < pixels; i++) {
        to[i] = (float)from[3 * i] / 255.0f;
        to[pixels + i] = (float)from[3 * i + 1] / 255.0f;
        to[2 * pixels + i] = (float)from[3 * i + 2] / 255.0f;
    }
}

void tern__image_floats(const uint8_t *from, int channels, int64_t pixels, float *to)
{
    (channels == 3 ? floats_of_rgb : floats_of_grey)(from, pixels, to);
}
