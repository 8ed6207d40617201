/* reader.h - reads images by the plug-ins of their formats, and reuses its memory from image to image. */
#ifndef TERN_SRC_IMAGE_READER_H
#define TERN_SRC_IMAGE_READER_H

#include "base/plugin.h"

#include <tern/backend/image.h>

/* The file memory and the decoders that one thread reuses. Starts zeroed. */
typedef struct tern__image_reader {
    int fd;       /* from begin until the image is read */
    bool is_open; /* fd is valid                        */
    size_t size;  /* of the file                        */
    uint8_t *bytes;
    size_t room;         /* of `bytes` */
    tern__plugin plugin; /* of the image's format */
    void *decoders[TERN__PLUGIN_COUNT];
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
