/* png.h - what a PNG plug-in offers: one const struct in a shared object of its own, found beside the
 * library. */
#ifndef TERN_BACKEND_PNG_H
#define TERN_BACKEND_PNG_H

#include <stddef.h>
#include <stdint.h>

#define TERN_PNG_ABI    1
#define TERN_PNG_SYMBOL "tern_png_plugin"

typedef struct tern_png_backend {
    int abi;     /* TERN_PNG_ABI */
    size_t size; /* sizeof(tern_png_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* The most bytes that encode may need. */
    size_t (*bytes_most)(int width, int height, int channels);
    /* `pixels` row by row from the top, each of 1 (grey), 3 (RGB) or 4 (RGBA) bytes; *bytes comes with the
     * room in `out` and leaves with what was written. Any thread. 0, or -1 with a reason in why[0..why_size).
     */
    int (*encode)(const uint8_t *pixels, int width, int height, int channels, void *out, size_t *bytes,
                  char *why, size_t why_size);
} tern_png_backend;

#endif
