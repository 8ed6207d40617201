/* away.c - broadcasts buffers in devices' memory through a window in the host's memory. They are copied into
 * it before the work is posted, and out of it when the work is done. staged.c does the same for gradients. */
#include "parallel/ddp.h"

typedef int (*visit_fn)(const tern_ddp *ddp, void *place, void *buffer, size_t bytes, tern_error *err);

/* Calls `visit`, unless it is NULL, for every such buffer that is not ignored, with its address in the window
 * at `base`; *bytes is the size of the window. */
static int each_buffer(const tern_ddp *ddp, visit_fn visit, char *base, size_t *bytes, tern_error *err)
{
    int status = TERN_OK;
    *bytes = 0;
    for (int i = 0; i < tern_state_count(ddp->module) && !status; i++) {
        tern_state_entry entry = tern_state_get(ddp->module, i);
        const tern__view *view = &entry.tensor->view;
        tern_device *device = tern__memory_device(view->data);
        if (!entry.is_buffer || ddp->ignored[i] || !device || tern__ddp_reaches(ddp, device)) continue;
        if (visit) status = visit(ddp, base + *bytes, view->data, tern__view_bytes(view), err);
        *bytes += tern__align_up(tern__view_bytes(view), TERN__LINE);
    }
    return status;
}

int tern__away_open(tern_ddp *ddp, tern_error *err)
{
    size_t bytes;
    each_buffer(ddp, NULL, NULL, &bytes, NULL);
    if (!bytes || !ddp->opts.broadcast_buffers) return TERN_OK;
    ddp->away.bytes = bytes;
    return tern__ddp_window_open(ddp, NULL, bytes, &ddp->away.window, err);
}

static int put(const tern_ddp *ddp, void *place, void *buffer, size_t bytes, tern_error *err)
{
    return tern__staged_copy(ddp, place, buffer, bytes, err);
}

static int take(const tern_ddp *ddp, void *place, void *buffer, size_t bytes, tern_error *err)
{
    return tern__staged_copy(ddp, buffer, place, bytes, err);
}

static int go_over(const tern_ddp *ddp, visit_fn visit, tern_error *err)
{
    size_t bytes;
    if (!ddp->away.bytes) return TERN_OK;
    char *base = tern__ddp_window_base(ddp, ddp->away.window);
    int status = tern__staged_depart(ddp, err);
    if (!status) status = each_buffer(ddp, visit, base, &bytes, err);
    return status ? status : tern__staged_return(ddp, err);
}

int tern__away_put(const tern_ddp *ddp, tern_error *err)
{
    int status = go_over(ddp, put, err);
    return status || !ddp->away.bytes ? status : tern__ddp_await(ddp, tern__staged_returned, err);
}

int tern__away_take(const tern_ddp *ddp, tern_error *err)
{
    return go_over(ddp, take, err);
}
