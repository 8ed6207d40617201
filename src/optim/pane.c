#include "optim/pane.h"

/* ---- life ---- */

static int open_stage(tern__pane *pane, char *base, size_t bytes, tern_error *err)
{
    const tern__device_backend *backend = pane->device->backend;
    pane->turn = backend->event_new(pane->device, err);
    if (!pane->turn) return err->code;
    int status = backend->pin(pane->device, base, bytes, err);
    if (!status) pane->stage = base;
    return status;
}

int tern__pane_open(tern__pane *pane, const tern_group *group, void *block, size_t bytes, tern_error *err)
{
    const tern__comm_backend *backend = group->backend;
    *pane = (tern__pane){.block = block, .device = block ? tern__memory_device(block) : NULL};
    bool is_staged = pane->device && !backend->window_of;
    int status = backend->window_open(group->state, is_staged ? NULL : block, bytes, &pane->window, err);
    if (status) return status;
    pane->is_open = true;
    char *base = backend->window_base(group->state, pane->window);
    if (!block) pane->block = base;
    return is_staged ? open_stage(pane, base, bytes, err) : TERN_OK;
}

void tern__pane_close(tern__pane *pane, const tern_group *group)
{
    if (pane->turn) {
        const tern__device_backend *backend = pane->device->backend;
        backend->event_wait(pane->device, pane->turn, NULL);
        if (pane->stage) backend->unpin(pane->device, pane->stage);
        backend->event_free(pane->device, pane->turn);
    }
    if (pane->is_open) group->backend->window_close(group->state, pane->window);
    *pane = (tern__pane){0};
}

/* ---- there and back ---- */

static int follow(const tern__pane *pane, tern__device_stream first, tern__device_stream second,
                  tern_error *err)
{
    const tern__device_backend *backend = pane->device->backend;
    int status = backend->event_record(pane->device, first, pane->turn, err);
    return status ? status : backend->stream_wait(pane->device, second, pane->turn, err);
}

int tern__pane_depart(const tern__pane *pane, tern_error *err)
{
    return pane->stage ? follow(pane, TERN__STREAM_STEP, TERN__STREAM_COMM, err) : TERN_OK;
}

int tern__pane_put(const tern__pane *pane, uint64_t offset, uint64_t bytes, tern_error *err)
{
    if (!pane->stage) return TERN_OK;
    return pane->device->backend->stream_copy(pane->device, TERN__STREAM_COMM, pane->stage + offset,
                                              pane->block + offset, bytes, err);
}

int tern__pane_settle(const tern__pane *pane, tern_error *err)
{
    if (!pane->stage) return TERN_OK;
    int status = pane->device->backend->event_record(pane->device, TERN__STREAM_COMM, pane->turn, err);
    return status ? status : pane->device->backend->event_wait(pane->device, pane->turn, err);
}

int tern__pane_take(const tern__pane *pane, uint64_t offset, uint64_t bytes, tern_error *err)
{
    if (!pane->stage) return TERN_OK;
    return pane->device->backend->stream_copy(pane->device, TERN__STREAM_COMM, pane->block + offset,
                                              pane->stage + offset, bytes, err);
}

int tern__pane_return(const tern__pane *pane, tern_error *err)
{
    return pane->stage ? follow(pane, TERN__STREAM_COMM, TERN__STREAM_STEP, err) : TERN_OK;
}
