/* codec.h - the plug-ins of image formats, and a reader that reuses its memory from image to image. */
#ifndef TERN_SRC_IMAGE_CODEC_H
#define TERN_SRC_IMAGE_CODEC_H

#include "base/base.h"

#include <tern/backend/image.h>

typedef enum tern__codec {
    TERN__CODEC_JPEG,
    TERN__CODEC_PNG,
    TERN__CODEC_TIFF,
    TERN__CODEC_COUNT
} tern__codec;

/* Returns the format's plug-in, and loads it on first use; any thread. NULL: E_UNSUPPORTED, with a text that
 * starts with `whose`, a file's name. */
const tern_image_codec *tern__codec_open(tern__codec which, const char *whose, const char *func,
                                         tern_error *err);

/* The file memory and the decoders that one thread reuses. Starts zeroed. */
typedef struct tern__image_reader {
    int fd;       /* from begin until the image is read */
    bool is_open; /* fd is valid                        */
    size_t size;  /* of the file                        */
    uint8_t *bytes;
    size_t room; /* of `bytes` */
    tern__codec codec;
    void *decoders[TERN__CODEC_COUNT];
} tern__image_reader;

void tern__image_reader_free(tern__image_reader *reader);

/* Opens `path`, reads its header and fills in all of `image` but the pixels. Fails as tern_image_load does.
 * `opts` has been completed by tern__opts_read. */
int tern__image_begin(tern__image_reader *reader, const char *path, const tern_image_opts *opts,
                      tern_image *image, const char *func, tern_error *err);
/* Decodes at least rows [top, top + rows) to their places in image->data, which grows if needed, and closes
 * the file. */
int tern__image_read(tern__image_reader *reader, const char *path, const tern_image_opts *opts, int64_t top,
                     int64_t rows, tern_image *image, const char *func, tern_error *err);

#endif
