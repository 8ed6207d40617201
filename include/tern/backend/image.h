/* image.h - the interface of an image plug-in: one const struct in a shared object that is installed beside
 * the library.
 *
 * Threads: any, each with a decoder of its own. */
#ifndef TERN_BACKEND_IMAGE_H
#define TERN_BACKEND_IMAGE_H

#include <tern/image.h>

#define TERN_IMAGE_ABI    2
#define TERN_IMAGE_SYMBOL "tern_image_plugin"

/* A file to decode. */
typedef struct tern_image_request {
    const uint8_t
        *bytes;  /* the whole file, valid until read returns; NULL for a plug-in that reads it itself */
    size_t size; /* bytes of the file */
    int fd;      /* the file, open for pread until read returns; it may become shorter meanwhile */
    tern_image_opts opts; /* `channels` is a wish: the caller converts the result */
} tern_image_request;

/* Functions return 0, or a tern_status with a reason in why[0..why_size). A decoder decodes one image after
 * the other. */
typedef struct tern_image_codec {
    int abi;     /* TERN_IMAGE_ABI */
    size_t size; /* sizeof(tern_image_codec) of the plug-in's build: members beyond it are absent */
    const char *name;
    bool reads;                 /* the plug-in itself reads what it needs of the file */
    void *(*decoder_new)(void); /* returns NULL if there is no memory */
    void (*decoder_free)(void *decoder);
    /* Reads the file's header and fills in all of `image` except its memory. It allocates nothing as large as
     * the image yet. */
    int (*begin)(void *decoder, const tern_image_request *request, tern_image *image, char *why,
                 size_t why_size);
    /* Called once after begin: decodes the rows [top, top + rows) to their places in image->data; the other
     * rows there are undefined. It reads the whole image, so that damage anywhere is found. */
    int (*read)(void *decoder, int64_t top, int64_t rows, const tern_image *image, char *why,
                size_t why_size);
    /* Returns the most bytes that encode may write. NULL, like encode, if the plug-in only decodes. */
    size_t (*encode_most)(const tern_image *image);
    /* Encodes to `out`. *bytes is its size before the call, and the number of bytes written after it. */
    int (*encode)(const tern_image *image, const tern_image_save_opts *opts, void *out, size_t *bytes,
                  char *why, size_t why_size);
} tern_image_codec;

#endif
