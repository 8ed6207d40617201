/* state.c - finds the parameters and buffers that all ranks share, and copies one rank's to all ranks. */
#include "parallel/ddp.h"
#include "tensor/host.h"

#include <string.h>

/* ---- ignored names ---- */

static int mark_ignored(tern_ddp *ddp, const char *name, tern_error *err)
{
    for (int i = 0; name && i < tern__entry_count(ddp->module); i++) {
        if (strcmp(tern__entry_get(ddp->module, i).name, name)) continue;
        ddp->ignored[i] = true;
        return TERN_OK;
    }
    return tern__error_set(err, "tern_ddp_new", TERN_E_INVALID,
                           "ignore: the model has no parameter or buffer \"%s\"", name ? name : "(NULL)");
}

static void order_range_kind(tern_ddp *ddp, bool is_frozen)
{
    const tern__seal *seal = ddp->seal;
    for (int k = 0; k < seal->leaf_count; k++)
        if (ddp->bucket_of[k] >= 0 && seal->ranges[seal->range_of[k]].is_frozen == is_frozen)
            ddp->order[ddp->leaf_count++] = k;
}

/* A parameter with several names is ignored if any of them is. Frozen ones come first, since the side values
 * go with the last bucket. */
static void order_leaves(tern_ddp *ddp)
{
    for (int k = 0; k < ddp->seal->leaf_count; k++) ddp->bucket_of[k] = 0;
    for (int i = 0; i < tern__entry_count(ddp->module); i++) {
        const tern_tensor *tensor = tern__entry_get(ddp->module, i).tensor;
        if (ddp->ignored[i] && tensor->leaf) ddp->bucket_of[tensor->leaf->index] = -1;
    }
    order_range_kind(ddp, true);
    order_range_kind(ddp, false);
}

int tern__state_plan(tern_ddp *ddp, tern_error *err)
{
    for (int i = 0; i < ddp->opts.ignore_count; i++) {
        int status = mark_ignored(ddp, ddp->opts.ignore[i], err);
        if (status) return status;
    }
    ddp->opts.ignore = NULL; /* it is the caller's, and not needed any more */
    order_leaves(ddp);
    if (ddp->leaf_count) return TERN_OK;
    return tern__error_set(err, "tern_ddp_new", TERN_E_INVALID,
                           "ignore: %s has no parameters left to synchronise", ddp->module->kind);
}

/* ---- parameters and buffers at once ---- */

const tern__view *tern__state_buffer(const tern_ddp *ddp, int i)
{
    tern_state_entry entry = tern__entry_get(ddp->module, i);
    return entry.is_buffer && !ddp->ignored[i] ? &entry.tensor->view : NULL;
}

/* Neighbours in one range, which are sent in one broadcast. */
typedef struct stretch {
    char *base; /* of its range */
    size_t begin, end;
} stretch;

static int stretch_broadcast(tern_ddp *ddp, stretch *s, int root, tern_error *err)
{
    tern__host host;
    int64_t bytes = (int64_t)(s->end - s->begin);
    tern__view view = tern__view_make(TERN_U8, TERN__PLAIN, 1, &bytes);
    view.data = s->base + s->begin;
    *s = (stretch){0};
    if (!bytes) return TERN_OK;
    int status = tern__host_open(&host, &view, err);
    if (status) return status;
    status = tern_broadcast(ddp->group, host.view.data, (size_t)bytes, TERN_U8, root, err);
    int closed = tern__host_close(&host, !status, err);
    return status ? status : closed;
}

static int state_add(tern_ddp *ddp, stretch *s, char *base, const tern__view *view, int root, tern_error *err)
{
    size_t begin = (size_t)((char *)view->data - base), end = begin + tern__view_bytes(view);
    bool is_next = s->base == base && tern__align_up(s->end, TERN__LINE) == begin;
    int status = is_next ? TERN_OK : stretch_broadcast(ddp, s, root, err);
    *s = (stretch){base, is_next ? s->begin : begin, end};
    return status;
}

int tern__state_copy(tern_ddp *ddp, int root, tern_error *err)
{
    tern__seal *seal = ddp->seal;
    stretch s = {0};
    int status = TERN_OK;
    for (int k = 0; k < seal->leaf_count && !status; k++)
        if (ddp->bucket_of[k] >= 0)
            status = state_add(ddp, &s, seal->ranges[seal->range_of[k]].params,
                               &seal->leaves[k]->parameter->view, root, err);
    for (int i = 0; i < tern__entry_count(ddp->module) && !status; i++) {
        const tern__view *view = tern__state_buffer(ddp, i);
        char *alone = view && tern__memory_device(view->data) ? view->data : NULL; /* in a device's memory */
        if (view) status = state_add(ddp, &s, alone ? alone : seal->buffers, view, root, err);
    }
    if (!status) status = stretch_broadcast(ddp, &s, root, err);
    tern__seal_touch(seal);
    return status;
}
