/* sharded_block.h - a block of memory of which each rank makes a slice for all others.
 *
 * Where the back end reaches the block, the block itself is a window. For a device's memory that the back end
 * does not reach there is a pinned window in the host's memory: the rank's own slice is put there before it
 * is sent, and the other ranks' slices are taken from there, on the device's communication stream. For other
 * blocks, put and take do nothing. */
#ifndef TERN_SRC_OPTIM_SHARDED_BLOCK_H
#define TERN_SRC_OPTIM_SHARDED_BLOCK_H

#include "comm/move/backend.h"
#include "device/backend.h"

typedef struct tern__sharded_block {
    char *data;
    tern_device *device; /* whose memory it is; NULL: the host's             */
    char *stage;         /* the host's window for it; NULL: it is the window itself */
    tern__device_event *turn;
    uint32_t window;
    bool is_open;
} tern__sharded_block;

/* `data` NULL: new, zeroed memory of the host. Collective. Must be closed after a failure, too. */
int tern__sharded_block_open(tern__sharded_block *block, const tern_group *group, void *data, size_t bytes,
                             tern_error *err);
/* Waits for running copies. */
void tern__sharded_block_close(tern__sharded_block *block, const tern_group *group);

/* The device in whose memory works on the block are; NULL: the host. */
static inline tern_device *tern__sharded_block_home(const tern__sharded_block *block)
{
    return block->stage ? NULL : block->device;
}

/* Later puts wait for everything that the step has been asked to write so far. */
int tern__sharded_block_depart(const tern__sharded_block *block, tern_error *err);
int tern__sharded_block_put(const tern__sharded_block *block, uint64_t offset, uint64_t bytes,
                            tern_error *err);
/* Waits for the puts. */
int tern__sharded_block_settle(const tern__sharded_block *block, tern_error *err);
int tern__sharded_block_take(const tern__sharded_block *block, uint64_t offset, uint64_t bytes,
                             tern_error *err);
/* Whatever the step is asked from now on waits for the takes. */
int tern__sharded_block_return(const tern__sharded_block *block, tern_error *err);

#endif
