/* image.h - images in files: reads JPEG, PNG and TIFF, writes PNG.
 *
 * Each format is a plug-in (tern_jpeg.so, tern_png.so, tern_tiff.so); the library itself needs none of
 * libjpeg, libpng and libtiff.
 *
 * Threads: any, each with an image of its own. */
#ifndef TERN_IMAGE_H
#define TERN_IMAGE_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The type of a channel. */
typedef enum tern_image_sample { TERN_IMAGE_U8, TERN_IMAGE_U16, TERN_IMAGE_F32 } tern_image_sample;

/* An image. Begin with one without pixels: `tern_image image = {0};`. */
typedef struct tern_image {
    int64_t height, width;
    int channels;             /* 1: grey, or indices; 3: RGB                                   */
    tern_image_sample sample; /* type of each channel, in the machine's byte order             */
    int64_t pages;            /* in the file: 1, or the pages of a TIFF stack                  */
    void *data;               /* (height, width, channels), rows from the top                  */
    size_t bytes;             /* size of `data`, which tern_image_load uses again if it is enough */
    void *reserved[4];        /* NULL                                                          */
} tern_image;

typedef struct tern_image_opts {
    size_t size;
    int channels;        /* 1 or 3: convert to these; default 0: as in the file. RGB becomes grey by Rec. 601
                            (a JPEG's grey is its own), grey becomes three equal channels                  */
    bool indices;        /* for label maps: read a PNG's palette indices, and grey of less than 8 bits,
                            unconverted. A colour image is then E_FORMAT. Default false                    */
    int64_t page;        /* of a TIFF; default 0                                                           */
    int64_t pixels_most; /* a file with more pixels is E_RANGE, before memory is allocated; default 2^28   */
    int64_t least[2];    /* height, width: decode a JPEG at 1/2, 1/4 or 1/8 of its size, as small as possible
                            but not below these, to save time; default 0, 0: full size                     */
} tern_image_opts;

/* Returns the default options. */
TERN_API tern_image_opts tern_image_defaults(void);

/* Decodes a file into `image`. The file's first bytes tell the format, not its name. Alpha is dropped.
 * Palettes become RGB. 16 bits and TIFF's f32 stay; other TIFFs of up to 8 bits a sample come as libtiff
 * shows them. As in Pillow, and so torchvision, a TIFF's Orientation is applied, and the orientation that a
 * camera notes in a JPEG or PNG is not. Reads the whole file, or the page of a TIFF. Errors begin with the
 * file's name: E_IO (the file cannot be read), E_FORMAT (not an image, damaged or truncated), E_RANGE (too
 * many pixels, no such page), E_UNSUPPORTED (a missing plug-in, with the package's name, or a kind of TIFF
 * or JPEG). The memory of `image` is always yours, also after an error: tern_image_free. */
TERN_API int tern_image_load(const char *path, const tern_image_opts *opts, tern_image *image,
                             tern_error *err);
/* Does the same without reading pixels: fills in the sizes, channels, sample and pages that tern_image_load
 * would. */
TERN_API int tern_image_probe(const char *path, const tern_image_opts *opts, tern_image *image,
                              tern_error *err);

typedef struct tern_image_save_opts {
    size_t size;
    const uint8_t *palette; /* `colours` times R, G, B, for a u8 image of indices with one channel; default
                               NULL: none                                                                 */
    int colours;            /* number of colours in the palette, 1 to 256                                 */
} tern_image_save_opts;

TERN_API tern_image_save_opts tern_image_save_defaults(void);

/* Writes an image as PNG: u8 or u16 with 1 channel (grey or indices) or 3, u8 also with 4 (RGBA). The file
 * gets its name when it is complete. E_INVALID: no pixels, or a kind that PNG does not have; E_RANGE:
 * colours, or an index outside the palette; E_IO: an old file is still there; E_UNSUPPORTED; E_MEMORY. */
TERN_API int tern_image_save(const char *path, const tern_image *image, const tern_image_save_opts *opts,
                             tern_error *err);

/* Frees the pixels and zeroes the struct; the struct itself is yours. */
TERN_API void tern_image_free(tern_image *image);

#ifdef __cplusplus
}
#endif
#endif
