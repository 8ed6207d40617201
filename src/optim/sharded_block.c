/* sharded_block.c - opens sharded blocks, and copies staged ones to and from the host. */
#include "optim/sharded_block.h"

/* ---- life ---- */

static int open_stage(tern__sharded_block *block, char *base, size_t bytes, tern_error *err)
{
    const tern__device_backend *backend = block->device->backend;
    block->turn = backend->event_new(block->device, err);
    if (!block->turn) return err->code;
    int status = backend->pin(block->device, base, bytes, err);
    if (!status) block->stage = base;
    return status;
}

int tern__sharded_block_open(tern__sharded_block *block, const tern_group *group, void *data, size_t bytes,
                             tern_error *err)
{
    const tern__comm_backend *backend = group->backend;
    *block = (tern__sharded_block){.data = data, .device = data ? tern__memory_device(data) : NULL};
    bool is_staged = block->device && !backend->reaches_devices;
    tern__window_opts opts = {.base = is_staged ? NULL : data, .bytes = bytes};
    int status = backend->window_open(group->state, &opts, &block->window, err);
    if (status) return status;
    block->is_open = true;
    char *base = tern__window_own(group, block->window);
    if (!data) block->data = base;
    return is_staged ? open_stage(block, base, bytes, err) : TERN_OK;
}

void tern__sharded_block_close(tern__sharded_block *block, const tern_group *group)
{
    if (block->turn) {
        const tern__device_backend *backend = block->device->backend;
        backend->event_wait(block->device, block->turn, NULL);
        if (block->stage) backend->unpin(block->device, block->stage);
        backend->event_free(block->device, block->turn);
    }
    if (block->is_open) group->backend->window_close(group->state, block->window);
    *block = (tern__sharded_block){0};
}

/* ---- there and back ---- */

static int block_follow(const tern__sharded_block *block, tern__device_stream first,
                        tern__device_stream second, tern_error *err)
{
    const tern__device_backend *backend = block->device->backend;
    int status = backend->event_record(block->device, first, block->turn, err);
    return status ? status : backend->stream_wait(block->device, second, block->turn, err);
}

int tern__sharded_block_depart(const tern__sharded_block *block, tern_error *err)
{
    return block->stage ? block_follow(block, TERN__STREAM_STEP, TERN__STREAM_COMM, err) : TERN_OK;
}

int tern__sharded_block_put(const tern__sharded_block *block, uint64_t offset, uint64_t bytes,
                            tern_error *err)
{
    if (!block->stage) return TERN_OK;
    return block->device->backend->stream_copy(block->device, TERN__STREAM_COMM, block->stage + offset,
                                               block->data + offset, bytes, err);
}

int tern__sharded_block_settle(const tern__sharded_block *block, tern_error *err)
{
    if (!block->stage) return TERN_OK;
    int status = block->device->backend->event_record(block->device, TERN__STREAM_COMM, block->turn, err);
    return status ? status : block->device->backend->event_wait(block->device, block->turn, err);
}

int tern__sharded_block_take(const tern__sharded_block *block, uint64_t offset, uint64_t bytes,
                             tern_error *err)
{
    if (!block->stage) return TERN_OK;
    return block->device->backend->stream_copy(block->device, TERN__STREAM_COMM, block->data + offset,
                                               block->stage + offset, bytes, err);
}

int tern__sharded_block_return(const tern__sharded_block *block, tern_error *err)
{
    return block->stage ? block_follow(block, TERN__STREAM_COMM, TERN__STREAM_STEP, err) : TERN_OK;
}
