/* compress.c - sends f32 gradients in 16 bits (reduce_dtype).
 *
 * When a bucket is posted, its gradients are rounded into a separate window. The rank that reduces them sums
 * in f32 and rounds the mean once more. (NCCL passes 16-bit sums on, each rounded again.) If the back end
 * reaches a device, a kernel rounds the device's gradients into a window in its memory; other devices'
 * gradients go through staged.c. */
#include "parallel/ddp.h"

#include "base/pages.h"
#include "kernels/halves.h"
#include "kernels/kernel.h"

/* ---- life ---- */

static bool is_narrow(const tern_ddp *ddp, int r)
{
    return ddp->opts.reduce_dtype != TERN_F32 && ddp->seal->ranges[r].grad_dtype == TERN_F32;
}

/* Makes the 16-bit copy of a device's gradients, zeroed because the padding between them must be zero on
 * every rank. */
static int make_block(tern_ddp *ddp, int r, size_t bytes, tern_error *err)
{
    tern_device *device = ddp->seal->ranges[r].device;
    if (!device) return TERN_OK;
    ddp->narrow_block[r] = tern__memory_new(device, bytes, "tern_ddp_new", err);
    return ddp->narrow_block[r] ? tern__memory_zero(ddp->narrow_block[r], bytes, err) : TERN_E_MEMORY;
}

int tern__compress_open(tern_ddp *ddp, tern_error *err)
{
    for (int r = 0; r < ddp->seal->range_count; r++) {
        if (!is_narrow(ddp, r)) continue;
        size_t bytes = tern__align_up(ddp->seal->ranges[r].grad_bytes / 2, tern__page_bytes());
        int status = make_block(ddp, r, bytes, err);
        void *base = tern__ddp_home(ddp, r) ? ddp->narrow_block[r] : NULL;
        if (!status) status = tern__ddp_window_open(ddp, base, bytes, &ddp->narrow[r], err);
        if (status) return status;
    }
    return TERN_OK;
}

void tern__compress_close(tern_ddp *ddp)
{
    for (int r = 0; r < ddp->seal->range_count; r++)
        if (ddp->narrow_block[r]) tern__memory_free(ddp->narrow_block[r]);
}

tern_dtype tern__compress_dtype(const tern_ddp *ddp, int r)
{
    return is_narrow(ddp, r) ? ddp->opts.reduce_dtype : ddp->seal->ranges[r].grad_dtype;
}

uint32_t tern__compress_window(const tern_ddp *ddp, int r)
{
    return is_narrow(ddp, r) ? ddp->narrow[r] : ddp->windows[r];
}

/* True if the range's gradients are rounded here and not in staged.c. */
static bool is_apart(const tern_ddp *ddp, int r)
{
    return is_narrow(ddp, r) && (!ddp->seal->ranges[r].device || tern__ddp_home(ddp, r));
}

/* ---- rounding into the window and back ---- */

/* Returns the place of the gradient of leaf k in the window. */
static void *place_of(const tern_ddp *ddp, int k)
{
    int r = ddp->seal->range_of[k];
    char *base = tern__ddp_window_base(ddp, tern__compress_window(ddp, r));
    size_t element = ddp->seal->offset[k] / tern_dtype_bytes(ddp->seal->ranges[r].dtype);
    return base + element * tern_dtype_bytes(tern__compress_dtype(ddp, r));
}

/* Casts on the device; both views are dense. */
static int cast(tern_device *device, const tern__view *to, const tern__view *from, tern_error *err)
{
    const tern__call call = {.device = device, .kernel = TERN__COPY, .in = {from}, .out = {to}, .err = err};
    return tern__kernel_run(&call);
}

/* Returns that place as a view with the gradient's shape. */
static tern__view narrow_of(const tern_ddp *ddp, int k)
{
    tern__view view = ddp->seal->leaves[k]->grad->view;
    view.dtype = ddp->opts.reduce_dtype;
    view.data = place_of(ddp, k);
    return view;
}

static int put(const tern_ddp *ddp, int k, tern_error *err)
{
    const tern__view *grad = &ddp->seal->leaves[k]->grad->view, narrow = narrow_of(ddp, k);
    tern_device *device = tern__ddp_home(ddp, ddp->seal->range_of[k]);
    if (device) return cast(device, &narrow, grad, err);
    tern__halves_narrow(narrow.dtype, narrow.data, grad->data, (uint64_t)tern__view_count(grad));
    return TERN_OK;
}

static int take(const tern_ddp *ddp, int k, tern_error *err)
{
    const tern__view *grad = &ddp->seal->leaves[k]->grad->view, narrow = narrow_of(ddp, k);
    tern_device *device = tern__ddp_home(ddp, ddp->seal->range_of[k]);
    if (device) return cast(device, grad, &narrow, err);
    tern__halves_widen(narrow.dtype, grad->data, narrow.data, (uint64_t)tern__view_count(grad));
    return TERN_OK;
}

int tern__compress_put(const tern_ddp *ddp, const tern__bucket *bucket, tern_error *err)
{
    int status = TERN_OK;
    for (int place = bucket->first; place < bucket->first + bucket->count && !status; place++) {
        int k = ddp->order[place];
        if (is_apart(ddp, ddp->seal->range_of[k])) status = put(ddp, k, err);
    }
    return status;
}

int tern__compress_take(const tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < ddp->leaf_count && !status; i++) {
        int k = ddp->order[i];
        bool apart = ddp->seal->leaves[k]->fresh && is_apart(ddp, ddp->seal->range_of[k]);
        if (apart) status = take(ddp, k, err);
    }
    return status;
}
