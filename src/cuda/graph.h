/* graph.h - a static step as a few graphs instead of thousands of launches, for those who ask for it
 * (tern_device_graphs_set). */
#ifndef TERN_SRC_CUDA_GRAPH_H
#define TERN_SRC_CUDA_GRAPH_H

#include "cuda/device.h"
#include "cuda/runtime.h"

tern__cuda_graphs *tern__cuda_graphs_new(void);
/* When the device has done all it was asked. */
void tern__cuda_graphs_free(tern__cuda_graphs *graphs);

/* A copy from the host's pageable memory, which may change when it returns. */
int tern__cuda_bring(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err);
/* Calls work(ctx) when neither of two devices holds anything back, and while nobody asks them for more. */
int tern__cuda_meet(tern_device *device, tern_device *other, int (*work)(void *ctx, tern_error *err),
                    void *ctx, tern_error *err);
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
