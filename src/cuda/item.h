/* item.h - one thing that is asked of a device's stream: a kernel, a call of a library, a copy.
 *
 * All that is put into the stream comes by tern__cuda_ask, as a block of plain bytes and the kind that can
 * read them. So an item can be kept, compared with others, and done later than it was asked for. */
#ifndef TERN_SRC_CUDA_ITEM_H
#define TERN_SRC_CUDA_ITEM_H

#include <cuda_runtime.h>

extern "C" {
#include "device/backend.h"
}

struct tern__cuda;

/* The bytes have no padding, unless it is cleared: they are compared. */
typedef struct tern__cuda_kind {
    size_t size; /* of the bytes */
    /* Puts it into the stream, by these bytes alone; allocates nothing of the device. */
    int (*run)(tern__cuda *cuda, const void *data, tern_error *err);
} tern__cuda_kind;

/* `data` is read before it returns, and aligned to 16 bytes. */
int tern__cuda_ask(tern_device *device, const tern__cuda_kind *kind, const void *data, tern_error *err);

#endif
