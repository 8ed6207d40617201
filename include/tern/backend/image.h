/* image.h - what an image plug-in offers: one const struct in a shared object of its own, found beside the
 * library.
 *
 * Threads: any, each with a decoder of its own. */
#ifndef TERN_BACKEND_IMAGE_H
#define TERN_BACKEND_IMAGE_H

#include <tern/image.h>

#define TERN_IMAGE_ABI    2
#define TERN_IMAGE_SYMBOL "tern_image_plugin"

typedef struct tern_image_request {
    const uint8_t *bytes; /* the whole file, until read returns; NULL for a plug-in that reads it itself */
    size_t size;          /* of the file */
    int fd;               /* the file, open until read returns, for pread: it may become shorter */
    tern_image_opts opts; /* `channels` is a wish, whoever asked converts what it gets */
} tern_image_request;

/* Functions return 0, or a tern_status with a reason in why[0..why_size). A decoder is used for one picture
 * after the other. */
typedef struct tern_image_codec {
    int abi;     /* TERN_IMAGE_ABI */
    size_t size; /* sizeof(tern_image_codec) of the plug-in's build: members beyond it are absent */
    const char *name;
    bool reads;                 /* by itself, what it needs of the file */
    void *(*decoder_new)(void); /* NULL: no memory */
    void (*decoder_free)(void *decoder);
    /* Reads what stands before the pixels, and fills in all of `image` but its memory; nothing as large as
     * the picture is allocated yet. */
    int (*begin)(void *decoder, const tern_image_request *request, tern_image *image, char *why,
                 size_t why_size);
    /* Once after begin: the rows [top, top + rows) at their places in image->data; what comes of the others
     * is open. All of the picture is read, so that damage anywhere is found. */
    int (*read)(void *decoder, int64_t top, int64_t rows, const tern_image *image, char *why,
                size_t why_size);
    /* The most bytes that encode may need. NULL, as encode: the plug-in only reads. */
    size_t (*encode_most)(const tern_image *image);
    /* *bytes comes with the room in `out` and leaves with what was written. */
    int (*encode)(const tern_image *image, const tern_image_save_opts *opts, void *out, size_t *bytes,
                  char *why, size_t why_size);
} tern_image_codec;

#endif
