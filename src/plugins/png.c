/* png.c - the PNG plug-in, by libpng's simplified interface. */
#include <tern/backend/png.h>

#include <tern/base.h>

#include <png.h>
#include <stdio.h>

static png_image image_of(int width, int height, int channels)
{
    static const png_uint_32 formats[5] = {
        [1] = PNG_FORMAT_GRAY, [3] = PNG_FORMAT_RGB, [4] = PNG_FORMAT_RGBA};
    return (png_image){.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)width,
                       .height = (png_uint_32)height,
                       .format = formats[channels]};
}

static size_t bytes_most(int width, int height, int channels)
{
    const png_image image = image_of(width, height, channels);
    return PNG_IMAGE_PNG_SIZE_MAX(image);
}

static int encode(const uint8_t *pixels, int width, int height, int channels, void *out, size_t *bytes,
                  char *why, size_t why_size)
{
    png_image image = image_of(width, height, channels);
    png_alloc_size_t room = *bytes;
    if (!png_image_write_to_memory(&image, out, &room, 0, pixels, width * channels, NULL)) {
        snprintf(why, why_size, "%s", image.message);
        return -1;
    }
    *bytes = room;
    return 0;
}

TERN_API extern const tern_png_backend tern_png_plugin;
const tern_png_backend tern_png_plugin = {.abi = TERN_PNG_ABI,
                                          .size = sizeof(tern_png_backend),
                                          .name = "libpng",
                                          .bytes_most = bytes_most,
                                          .encode = encode};
