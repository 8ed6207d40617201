/* codec.h - the plug-in of a format, and reading pictures one after the other with little left to allocate.
 */
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

/* Loaded when first asked for. NULL: E_UNSUPPORTED; the text begins with `whose`, a file's name. Any thread.
 */
const tern_image_codec *tern__codec_open(tern__codec which, const char *whose, const char *func,
                                         tern_error *err);

/* The file and the decoders that one thread uses again and again; zeroed, it has none yet. */
typedef struct tern__image_reader {
    int fd;       /* from begin until the picture is read */
    bool is_open; /* is there such a descriptor?          */
    size_t size;  /* of the file                          */
    uint8_t *bytes;
    size_t room; /* for them */
    tern__codec codec;
    void *decoders[TERN__CODEC_COUNT];
} tern__image_reader;

void tern__image_reader_free(tern__image_reader *reader);

/* Reads what stands before the pixels of `path`: all of `image` but its memory is filled in. Errors as
 * tern_image_load's. The options have been read by tern__opts_read. */
int tern__image_begin(tern__image_reader *reader, const char *path, const tern_image_opts *opts,
                      tern_image *image, const char *func, tern_error *err);
/* Rows [top, top + rows) at least, at their places in image->data, whose memory grows if it must. */
int tern__image_read(tern__image_reader *reader, const char *path, const tern_image_opts *opts, int64_t top,
                     int64_t rows, tern_image *image, const char *func, tern_error *err);

#endif
