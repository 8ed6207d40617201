/* item.h - one unit of work for a device's stream: a kernel, a library call, a copy.
 *
 * Everything that goes into the step's stream goes through tern__cuda_ask, as plain bytes and a kind that
 * can interpret them. So an item can be stored, compared with others, and run later. */
#ifndef TERN_SRC_CUDA_ITEM_H
#define TERN_SRC_CUDA_ITEM_H

#include <cuda_runtime.h>

extern "C" {
#include "device/backend.h"
}

struct tern__cuda;

/* Padding must be zeroed: items are compared bytewise. */
typedef struct tern__cuda_kind {
    size_t size;  /* of the data in bytes */
    size_t fixed; /* the first bytes, which `change` cannot change */
    /* Puts the item into the stream, using only its data; allocates nothing from the device's pool. */
    int (*run)(tern__cuda *cuda, const void *data, tern_error *err);
    /* Updates a graph's node with other data; NULL: all data are fixed. */
    cudaError_t (*change)(const void *data, cudaGraphExec_t exec, cudaGraphNode_t node);
} tern__cuda_kind;

/* `data` is copied during the call, and aligned to 16 bytes. */
int tern__cuda_ask(tern_device *device, const tern__cuda_kind *kind, const void *data, tern_error *err);

#endif
