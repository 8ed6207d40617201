/* compress.c - sends f32 gradients in 16 bits (reduce_dtype).
 *
 * When a bucket is put, its gradients are rounded into a window of their own. The rank that reduces them sums
 * in f32 and rounds the mean once more. (NCCL passes 16-bit sums on, each rounded again.) A device's
 * gradients are rounded by a kernel, into memory of the device: a window if the back end reaches it,
 * otherwise a block that staging.c copies. */
#include "parallel/ddp.h"

#include "base/pages.h"
#include "kernels/halves.h"
#include "kernels/kernel.h"

static bool is_narrow(const tern_ddp *ddp, int r)
{
    return ddp->opts.reduce_dtype != TERN_F32 && ddp->seal->ranges[r].grad_dtype == TERN_F32;
}

static bool compress_is_on(const tern_ddp *ddp)
{
    return ddp->opts.reduce_dtype != TERN_F32;
}

/* Makes the 16-bit copy of a range's gradients, zeroed because the padding between them must be zero on every
 * rank. */
static int narrow_open(tern_ddp *ddp, int r, tern_error *err)
{
    tern__ddp_range *range = &ddp->ranges[r];
    tern_device *device = ddp->seal->ranges[r].device;
    size_t bytes = tern__align_up(ddp->seal->ranges[r].grad_bytes / 2, tern__page_bytes());
    char *block = device ? tern__ddp_alloc(ddp, device, bytes, err) : NULL;
    if (device && !block) return TERN_E_MEMORY;
    int status = device ? tern__memory_zero(block, bytes, err) : TERN_OK;
    void *base = tern__ddp_home(ddp, r) ? block : NULL;
    if (!status) status = tern__ddp_window_open(ddp, base, bytes, &range->window, err);
    if (status) return status;
    range->dtype = ddp->opts.reduce_dtype;
    range->grads = device ? block : tern__ddp_window_base(ddp, range->window);
    return TERN_OK;
}

static int compress_open(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (is_narrow(ddp, r)) status = narrow_open(ddp, r, err);
    return status;
}

static int cast_extent(const tern_ddp *ddp, int r, const tern__extent *e, bool is_put, tern_error *err)
{
    tern_device *device = ddp->seal->ranges[r].device;
    tern_dtype dtype = ddp->ranges[r].dtype;
    int64_t count = (int64_t)e->count;
    tern__view narrow = tern__view_make(dtype, TERN__PLAIN, 1, &count),
               wide = tern__view_make(TERN_F32, TERN__PLAIN, 1, &count);
    narrow.data = ddp->ranges[r].grads + e->offset;
    wide.data = ddp->seal->ranges[r].grads + e->offset / tern_dtype_bytes(dtype) * sizeof(float);
    const tern__call call = {.device = device,
                             .kernel = TERN__COPY,
                             .in = {is_put ? &wide : &narrow},
                             .out = {is_put ? &narrow : &wide},
                             .err = err};
    if (device) return tern__kernel_run(&call);
    if (is_put)
        tern__halves_narrow(dtype, narrow.data, wide.data, e->count);
    else
        tern__halves_widen(dtype, wide.data, narrow.data, e->count);
    return TERN_OK;
}

static int cast_bucket(const tern_ddp *ddp, const tern__bucket *bucket, bool is_put, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count; r++)
        for (int i = 0; is_narrow(ddp, r) && i < bucket->extent_count && !status; i++)
            if (bucket->extents[i].window == ddp->ranges[r].window)
                status = cast_extent(ddp, r, &bucket->extents[i], is_put, err);
    return status;
}

static int compress_put(tern_ddp *ddp, tern_error *err)
{
    return cast_bucket(ddp, &ddp->buckets[ddp->round.next_put], true, err);
}

static int compress_take(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int b = 0; b < ddp->bucket_count && !ddp->round.is_idle && !status; b++)
        if (tern__bucket_has_mean(ddp, &ddp->buckets[b]))
            status = cast_bucket(ddp, &ddp->buckets[b], false, err);
    return status;
}

const tern__ddp_part tern__compress_part = {
    .is_on = compress_is_on,
    .at = {
        [TERN__DDP_OPEN] = compress_open, [TERN__DDP_PUT] = compress_put, [TERN__DDP_TAKE] = compress_take}};
