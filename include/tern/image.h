/* image.h - pictures in files: JPEG, PNG and TIFF in, PNG out. Each format is a plug-in (tern_jpeg.so,
 * tern_png.so, tern_tiff.so); the library itself needs none of libjpeg, libpng and libtiff.
 *
 * Threads: any, each with an image of its own. */
#ifndef TERN_IMAGE_H
#define TERN_IMAGE_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tern_image_sample { TERN_IMAGE_U8, TERN_IMAGE_U16, TERN_IMAGE_F32 } tern_image_sample;

/* Zeroed, an image without pixels: `tern_image image = {0};`. */
typedef struct tern_image {
    int64_t height, width;
    int channels;             /* 1: grey, or indices; 3: RGB                                   */
    tern_image_sample sample; /* of each channel, in the byte order of the machine             */
    int64_t pages;            /* in the file: 1, or those of a TIFF stack                      */
    void *data;               /* (height, width, channels), rows from the top                  */
    size_t bytes;             /* room at `data`, which tern_image_load uses again if it is enough */
} tern_image;

typedef struct tern_image_opts {
    size_t size;
    int channels;        /* 1 or 3: what is wanted; default 0: as the file has them. RGB becomes grey by
                            Rec. 601 (a JPEG's grey is its own), grey becomes three equal channels         */
    bool indices;        /* of a PNG with a palette the indices, and grey of less than 8 bits as it is: for
                            label maps. A picture in colours is then E_FORMAT. Default false                */
    int64_t page;        /* of a TIFF; default 0                                                           */
    int64_t pixels_most; /* a file that says it has more is E_RANGE, before memory is asked for; default
                            2^28                                                                           */
    int64_t least[2];    /* height, width: a JPEG may come at 1/2, 1/4 or 1/8 of its size, as small as it
                            can be without falling below these, for less work; default 0, 0: in full       */
} tern_image_opts;

TERN_API tern_image_opts tern_image_defaults(void);

/* Decodes a file, of whatever name: its first bytes say what it is. Alpha is dropped; palettes become RGB;
 * 16 bits and TIFF's f32 stay; other TIFFs of up to 8 bits a sample come as libtiff shows them. As Pillow and
 * so torchvision do, a TIFF is mirrored and turned as its Orientation says, and what a camera notes in a JPEG
 * or PNG is not applied. Reads the whole file and of a TIFF the page.
 * E_IO: the file cannot be read. E_FORMAT: it is no picture, damaged or truncated. E_RANGE: too many pixels,
 * no such page. E_UNSUPPORTED: a plug-in is missing (the text names the package), or a kind of TIFF. Every
 * text begins with the file's name. Whatever happens, the memory of `image` stays yours: tern_image_free. */
TERN_API int tern_image_load(const char *path, const tern_image_opts *opts, tern_image *image,
                             tern_error *err);
/* The same without pixels: sizes, channels, sample and pages as tern_image_load would give them. */
TERN_API int tern_image_probe(const char *path, const tern_image_opts *opts, tern_image *image,
                              tern_error *err);

typedef struct tern_image_save_opts {
    size_t size;
    const uint8_t *palette; /* `colours` times R, G, B, for the indices of a u8 image of one channel; default
                               NULL: none                                                                 */
    int colours;            /* 1 to 256, with a palette                                                   */
} tern_image_save_opts;

TERN_API tern_image_save_opts tern_image_save_defaults(void);

/* Writes a PNG: u8 or u16, of 1 (grey or indices) or 3 channels, u8 also of 4 (RGBA). The file takes its name
 * when it is whole. E_INVALID: no pixels, or such as a PNG cannot have; E_RANGE: colours, an index without
 * one; E_IO: the old file is still there; E_UNSUPPORTED; E_MEMORY. */
TERN_API int tern_image_save(const char *path, const tern_image *image, const tern_image_save_opts *opts,
                             tern_error *err);

/* Frees the pixels, not the struct, which is zeroed. */
TERN_API void tern_image_free(tern_image *image);

#ifdef __cplusplus
}
#endif
#endif
