/* pack.h - copies of a parameter in a kernel's own layout, kept with the parameter and made anew when it has
 * changed. */
#ifndef TERN_SRC_KERNELS_PACK_H
#define TERN_SRC_KERNELS_PACK_H

#include "tensor/view.h"

struct tern__pack {
    uint64_t version; /* of the parameter when it was made */
    void *data;
    struct tern__pack *next;
    size_t format_bytes;
    unsigned char format[]; /* the kernel's own description of it */
};

/* The copy in the format that `format_bytes` bytes at `format` describe, whoever asks for it; allocated with
 * `bytes` if it is not there. *stale tells whether it must be filled again (and is then taken to be filled).
 * NULL: out of memory. */
void *tern__pack_get(tern__packs *packs, const void *format, size_t format_bytes, size_t bytes, bool *stale);

#endif
