/* graph.h - a static step as a few graphs instead of thousands of launches, for those who ask for it
 * (tern_device_graphs_set). */
#ifndef TERN_SRC_CUDA_GRAPH_H
#define TERN_SRC_CUDA_GRAPH_H

#include "cuda/device.h"
#include "cuda/runtime.h"

#include <mutex>

tern__cuda_graphs *tern__cuda_graphs_new(void);
/* When the device has done all it was asked. */
void tern__cuda_graphs_free(tern__cuda_graphs *graphs);

/* A copy from the host's memory, which may change when it returns: of pinned memory it waits for the device.
 */
int tern__cuda_bring(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err);
/* Whoever puts something into the step's stream by himself, or waits for it, holds this meanwhile: then
 * nothing is held back, and nobody captures. Any thread. */
typedef std::unique_lock<std::mutex> tern__cuda_hold;
int tern__cuda_enter(tern_device *device, tern__cuda_hold *hold, tern_error *err);
/* Of two devices. */
int tern__cuda_enter_both(tern_device *const devices[2], tern__cuda_hold holds[2], tern_error *err);
/* Waits for all of the step's stream, and forgets the graphs: addresses that they know will be gone. Any
 * thread. */
void tern__cuda_settle(tern__cuda *cuda);

/* What an item of its own says. */
typedef struct tern__cuda_transfer {
    void *to;
    const void *from;
    size_t bytes;
} tern__cuda_transfer;
extern const tern__cuda_kind tern__cuda_transfer_kind;

#endif
