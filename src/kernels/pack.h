/* pack.h - copies of a parameter in a kernel's own layout.
 *
 * A copy is worth keeping only if it is used again before the parameter changes: in evaluation, and over the
 * microbatches of a step. In training every copy is used once, so the first use of a version gets none and
 * the kernel packs into scratch memory; that saves two copies of all weights.
 *
 * Replicas on several devices share a parameter and ask at the same time. Each device has copies of its own,
 * so the only thing that threads do together is to put a new one at the head of the list. */
#ifndef TERN_SRC_KERNELS_PACK_H
#define TERN_SRC_KERNELS_PACK_H

#include "tensor/view.h"

struct tern__pack {
    const void *owner; /* the device whose thread alone uses this one */
    uint64_t version;  /* of the parameter when the format was last asked for */
    void *data;        /* NULL until a version is asked for twice             */
    bool filled;       /* data is of this version                             */
    struct tern__pack *next;
    size_t format_bytes;
    unsigned char format[]; /* the kernel's own description of it */
};

/* The owner's copy in the format that `format_bytes` bytes at `format` describe, of `bytes` bytes. *stale
 * tells whether it must be filled (and is then taken to be filled). NULL: nothing is kept, pack elsewhere. */
void *tern__pack_get(tern__packs *packs, const void *owner, const void *format, size_t format_bytes,
                     size_t bytes, bool *stale);

#endif
