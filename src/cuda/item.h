/* item.h - one thing that is asked of a device's stream: a kernel, a call of a library, a copy.
 *
 * All that is put into the step's stream comes by tern__cuda_ask, as a block of plain bytes and the kind that
 * can read them. So an item can be kept, compared with others, and done later than it was asked for. */
#ifndef TERN_SRC_CUDA_ITEM_H
#define TERN_SRC_CUDA_ITEM_H

#include <cuda_runtime.h>

extern "C" {
#include "device/backend.h"
}

struct tern__cuda;

/* Padding must be zeroed: items are compared byte by byte. */
typedef struct tern__cuda_kind {
    size_t size;  /* of the bytes */
    size_t fixed; /* those of them, the first, that `change` cannot change */
    /* Puts it into the stream, by these bytes alone; takes no memory of the device's pool. */
    int (*run)(tern__cuda *cuda, const void *data, tern_error *err);
    /* Makes the node of a graph do what other bytes say; NULL: all are fixed. */
    cudaError_t (*change)(const void *data, cudaGraphExec_t exec, cudaGraphNode_t node);
} tern__cuda_kind;

/* `data` is read before it returns, and aligned to 16 bytes. */
int tern__cuda_ask(tern_device *device, const tern__cuda_kind *kind, const void *data, tern_error *err);

#endif
