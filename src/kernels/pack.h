/* pack.h - copies of a parameter in a kernel's own layout.
 *
 * A copy is worth keeping only if it is used again before the parameter changes: in evaluation, and over
 * the microbatches of a step. In training every copy is used once. So the first use of a version keeps
 * none, and the kernel packs into scratch memory; this saves two copies of all weights.
 *
 * Replicas on several devices share a parameter and call at the same time. Each device has copies of its
 * own, so threads only share the head of the list, where new copies are inserted. */
#ifndef TERN_SRC_KERNELS_PACK_H
#define TERN_SRC_KERNELS_PACK_H

#include "tensor/view.h"

struct tern__pack {
    const void *owner; /* the device; only its thread uses this copy */
    uint64_t version;  /* the parameter's version when the format was last asked for */
    void *data;        /* NULL until the same version is asked for twice */
    bool filled;       /* data holds this version */
    struct tern__pack *next;
    size_t format_bytes;
    unsigned char format[]; /* the kernel's description of the format */
};

/* Returns the owner's copy, `bytes` bytes in the format described by `format_bytes` bytes at `format`.
 * *stale: the caller must fill it now. NULL: nothing is kept, pack elsewhere. */
void *tern__pack_get(tern__packs *packs, const void *owner, const void *format, size_t format_bytes,
                     size_t bytes, bool *stale);

#endif
