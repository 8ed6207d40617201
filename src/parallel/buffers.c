/* buffers.c - broadcasts rank 0's buffers in every synchronised backward.
 *
 * Those in the host's memory, and those of devices that the back end reaches, are broadcast where they are.
 * Those of other devices go through a window in the host's memory, as gradients do in staging.c: they are
 * copied into it before the work is posted, and out of it when the work is done. */
#include "parallel/ddp.h"

struct tern__ddp_buffers {
    tern__extent *host, *reached; /* the second in devices' memory */
    int host_count, reached_count;
    tern__extent staged; /* the window of the other devices' buffers; no elements: there are none */
    tern_device *pinned; /* the device that has pinned that window, or NULL */
};

static bool is_staged(const tern_ddp *ddp, const tern__view *view)
{
    tern_device *device = tern__memory_device(view->data);
    return device && !tern__ddp_reaches(ddp, device);
}

/* ---- life ---- */

static bool buffers_are_on(const tern_ddp *ddp)
{
    return ddp->opts.broadcast_buffers;
}

/* Adds a buffer in the host's memory; neighbours become one extent. */
static void host_add(tern_ddp *ddp, uint32_t window, const tern__view *view)
{
    struct tern__ddp_buffers *self = ddp->buffers;
    uint64_t offset = (uint64_t)((char *)view->data - ddp->seal->buffers);
    tern__extent *last = self->host + self->host_count - 1;
    if (self->host_count && tern__align_up(last->offset + last->count, TERN__LINE) == offset)
        last->count = offset + tern__view_bytes(view) - last->offset;
    else
        self->host[self->host_count++] = (tern__extent){window, offset, tern__view_bytes(view)};
}

static int reached_add(tern_ddp *ddp, tern_device *device, const tern__view *view, tern_error *err)
{
    struct tern__ddp_buffers *self = ddp->buffers;
    tern__extent *extent = &self->reached[self->reached_count++];
    extent->offset = (uint64_t)((char *)view->data - device->memory.base);
    extent->count = tern__view_bytes(view);
    return tern__window_of(ddp->group, device, &extent->window, err);
}

/* Opens the window of the staged buffers, and pins it. */
static int staged_open(tern_ddp *ddp, uint64_t bytes, tern_error *err)
{
    struct tern__ddp_buffers *self = ddp->buffers;
    tern_device *device = tern__ddp_staging_device(ddp);
    if (!bytes) return TERN_OK;
    int status = tern__ddp_extent_open(ddp, TERN_U8, bytes, &self->staged, err);
    if (status) return status;
    self->host[self->host_count++] = self->staged;
    if (!device) return TERN_OK;
    status = device->backend->pin(device, tern__ddp_window_base(ddp, self->staged.window), bytes, err);
    if (!status) self->pinned = device;
    return status;
}

static int buffers_open(tern_ddp *ddp, tern_error *err)
{
    uint32_t window = 0;
    uint64_t staged = 0;
    size_t count = (size_t)tern__entry_count(ddp->module);
    struct tern__ddp_buffers *self = ddp->buffers;
    self->host = tern__ddp_alloc(ddp, NULL, (2 * count + 1) * sizeof(*self->host), err);
    if (!self->host) return TERN_E_MEMORY;
    self->reached = self->host + count + 1;
    int status = TERN_OK;
    if (ddp->seal->buffer_bytes)
        status = tern__ddp_window_open(ddp, ddp->seal->buffers, ddp->seal->buffer_bytes, &window, err);
    for (int i = 0; i < (int)count && !status; i++) {
        const tern__view *view = tern__state_buffer(ddp, i);
        tern_device *device = view ? tern__memory_device(view->data) : NULL;
        if (view && !device)
            host_add(ddp, window, view);
        else if (view && is_staged(ddp, view))
            staged += tern__align_up(tern__view_bytes(view), TERN__LINE);
        else if (view)
            status = reached_add(ddp, device, view, err);
    }
    return status ? status : staged_open(ddp, staged, err);
}

static int buffers_close(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    const struct tern__ddp_buffers *self = ddp->buffers;
    if (self->pinned)
        self->pinned->backend->unpin(self->pinned, tern__ddp_window_base(ddp, self->staged.window));
    return TERN_OK;
}

/* ---- a backward ---- */

/* Copies the staged buffers into their window, or out of it. */
static int staged_copy(const tern_ddp *ddp, bool is_post, tern_error *err)
{
    char *place = tern__ddp_window_base(ddp, ddp->buffers->staged.window);
    int status = tern__ddp_staging_follow(ddp, TERN__STREAM_STEP, TERN__STREAM_COMM, err);
    for (int i = 0; i < tern__entry_count(ddp->module) && !status; i++) {
        const tern__view *view = tern__state_buffer(ddp, i);
        if (!view || !is_staged(ddp, view)) continue;
        size_t bytes = tern__view_bytes(view);
        status = tern__ddp_staging_copy(ddp, is_post ? place : view->data, is_post ? view->data : place,
                                        bytes, err);
        place += tern__align_up(bytes, TERN__LINE);
    }
    return status ? status : tern__ddp_staging_follow(ddp, TERN__STREAM_COMM, TERN__STREAM_STEP, err);
}

static int buffers_post(tern_ddp *ddp, tern_error *err)
{
    const struct tern__ddp_buffers *self = ddp->buffers;
    int status = self->staged.count ? staged_copy(ddp, true, err) : TERN_OK;
    if (!status && self->staged.count) status = tern__ddp_await(ddp, tern__ddp_staging_test, err);
    if (!status && self->host_count)
        status = tern__ddp_post_all(ddp, TERN__BROADCAST, TERN_U8, self->host, self->host_count, err);
    if (!status && self->reached_count)
        status = tern__ddp_post_all(ddp, TERN__BROADCAST, TERN_U8, self->reached, self->reached_count, err);
    return status;
}

static int buffers_take(tern_ddp *ddp, tern_error *err)
{
    return ddp->buffers->staged.count ? staged_copy(ddp, false, err) : TERN_OK;
}

const tern__ddp_part tern__buffers_part = {TERN__DDP_STATE(buffers), .is_on = buffers_are_on,
                                           .at = {[TERN__DDP_OPEN] = buffers_open,
                                                  [TERN__DDP_POST] = buffers_post,
                                                  [TERN__DDP_TAKE] = buffers_take,
                                                  [TERN__DDP_CLOSE] = buffers_close}};
