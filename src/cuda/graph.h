/* graph.h - launches a static step as a few graphs instead of thousands of kernels, if asked to
 * (tern_device_graphs_set). */
#ifndef TERN_SRC_CUDA_GRAPH_H
#define TERN_SRC_CUDA_GRAPH_H

#include "cuda/device.h"
#include "cuda/runtime.h"

#include <mutex>

tern__cuda_graphs *tern__cuda_graphs_new(void);
/* The device must have done all its work. */
void tern__cuda_graphs_free(tern__cuda_graphs *graphs);

/* Copies from host memory, which may change when the call returns. For pinned memory that waits for the
 * device. */
int tern__cuda_bring(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err);
/* A lock held while the step's stream is used directly: nothing is held back then, and nobody captures.
 * Any thread. */
typedef std::unique_lock<std::mutex> tern__cuda_hold;
int tern__cuda_enter(tern_device *device, tern__cuda_hold *hold, tern_error *err);
/* The same for two devices. */
int tern__cuda_enter_both(tern_device *const devices[2], tern__cuda_hold holds[2], tern_error *err);
/* Waits for the step's stream and drops all graphs, because addresses in them become invalid. Any thread. */
void tern__cuda_settle(tern__cuda *cuda);

/* The data of an item that copies or zeroes. */
typedef struct tern__cuda_transfer {
    void *to;
    const void *from;
    size_t bytes;
} tern__cuda_transfer;
extern const tern__cuda_kind tern__cuda_transfer_kind;

#endif
