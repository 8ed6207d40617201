/* staged.c - reduces gradients in a device's memory through pinned windows in the host's memory, if the back
 * end does not reach the device.
 *
 * When a bucket's gradients are complete, copies into the window are enqueued on the device's communication
 * stream, after all work that is on the step's stream by then: one copy per contiguous extent. Backward goes
 * on meanwhile, and the bucket is posted once the event after its copies has completed. The means are copied
 * back on the same stream, and the step's stream waits for them. A bucket to which this rank contributes
 * nothing is posted once the last backward's copies back have completed, because from then on its peers may
 * write to the window. Gradients that are reduced in 16 bits are cast on the device. */
#include "parallel/ddp.h"

#include "device/backend.h"
#include "kernels/kernel.h"

/* Returns the device of gradient range r if it is staged; NULL: it is reduced where it is. */
static tern_device *device_of(const tern_ddp *ddp, int r)
{
    return tern__ddp_home(ddp, r) ? NULL : ddp->seal->ranges[r].device;
}

static char *window_of(const tern_ddp *ddp, int r)
{
    return tern__ddp_window_base(ddp, tern__compress_window(ddp, r));
}

/* ---- life ---- */

/* Returns the bytes of the range's gradients in the dtype in which they are reduced. */
static size_t window_bytes(const tern_ddp *ddp, int r)
{
    const tern__range *range = &ddp->seal->ranges[r];
    size_t size = tern_dtype_bytes(tern__compress_dtype(ddp, r));
    return range->grad_bytes / tern_dtype_bytes(range->grad_dtype) * size;
}

static int open_stage(tern_ddp *ddp, int r, tern_error *err)
{
    tern__ddp_stage *stage = &ddp->stages[r];
    tern_device *device = device_of(ddp, r);
    size_t events = (size_t)ddp->seal->leaf_count + 2, bytes = window_bytes(ddp, r);
    stage->turn = device->backend->event_new(device, err);
    stage->back = stage->turn ? device->backend->event_new(device, err) : NULL;
    stage->there = tern__alloc(events * sizeof(*stage->there), "tern_ddp_new", err);
    if (!stage->back || !stage->there) return err->code;
    int status = device->backend->pin(device, window_of(ddp, r), bytes, err);
    if (!status) stage->pinned = window_of(ddp, r);
    return status;
}

/* Pins the window of the buffers, too. */
static int pin_away(tern_ddp *ddp, tern_error *err)
{
    tern_device *device = NULL;
    for (int r = 0; r < ddp->seal->range_count && !device; r++) device = device_of(ddp, r);
    if (!device || !ddp->away.bytes) return TERN_OK;
    void *base = tern__ddp_window_base(ddp, ddp->away.window);
    int status = device->backend->pin(device, base, ddp->away.bytes, err);
    if (!status) ddp->away.pinned = device;
    return status;
}

int tern__staged_open(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r)) status = open_stage(ddp, r, err);
    return status ? status : pin_away(ddp, err);
}

/* Waits for copies that a failed backward has left enqueued. */
static void wait_all(const tern_ddp *ddp, int r)
{
    tern_device *device = device_of(ddp, r);
    device->backend->event_record(device, TERN__STREAM_COMM, ddp->stages[r].back, NULL);
    device->backend->event_wait(device, ddp->stages[r].back, NULL);
}

static void close_stage(const tern_ddp *ddp, int r)
{
    const tern__ddp_stage *stage = &ddp->stages[r];
    tern_device *device = device_of(ddp, r);
    if (stage->back) wait_all(ddp, r);
    if (stage->pinned) device->backend->unpin(device, stage->pinned);
    for (int b = 0; stage->there && b < ddp->seal->leaf_count + 2; b++)
        device->backend->event_free(device, stage->there[b]);
    device->backend->event_free(device, stage->back);
    device->backend->event_free(device, stage->turn);
    tern__free(stage->there);
}

void tern__staged_close(tern_ddp *ddp)
{
    for (int r = 0; r < ddp->seal->range_count; r++)
        if (device_of(ddp, r)) close_stage(ddp, r);
    if (!ddp->away.pinned) return;
    void *base = tern__ddp_window_base(ddp, ddp->away.window);
    ddp->away.pinned->backend->unpin(ddp->away.pinned, base);
}

/* ---- a bucket's extents ---- */

/* Makes stream `second` wait for all work that is on stream `first` now. */
static int follow(const tern_ddp *ddp, int r, tern__device_stream first, tern__device_stream second,
                  tern_error *err)
{
    tern_device *device = device_of(ddp, r);
    tern__device_event *event = first == TERN__STREAM_STEP ? ddp->stages[r].turn : ddp->stages[r].back;
    int status = device->backend->event_record(device, first, event, err);
    return status ? status : device->backend->stream_wait(device, second, event, err);
}

static bool has_range(const tern_ddp *ddp, const tern__bucket *bucket, int r)
{
    bool has = false;
    for (int i = 0; i < bucket->extent_count; i++)
        has |= bucket->extents[i].window == tern__compress_window(ddp, r);
    return has;
}

/* Returns the extent's address on the device, in the dtype in which it is reduced. */
static char *place_of(const tern_ddp *ddp, int r, const tern__extent *e)
{
    char *base = ddp->narrow_block[r] ? ddp->narrow_block[r] : ddp->seal->ranges[r].grads;
    return base + e->offset;
}

static int cast(const tern_ddp *ddp, int r, const tern__extent *e, bool is_put, tern_error *err)
{
    const tern__range *range = &ddp->seal->ranges[r];
    int64_t count = (int64_t)e->count;
    tern_dtype dtype = tern__compress_dtype(ddp, r);
    tern__view narrow = tern__view_make(dtype, TERN__PLAIN, 1, &count),
               wide = tern__view_make(range->grad_dtype, TERN__PLAIN, 1, &count);
    narrow.data = place_of(ddp, r, e);
    wide.data = range->grads + e->offset / tern_dtype_bytes(dtype) * tern_dtype_bytes(range->grad_dtype);
    const tern__call call = {.device = range->device,
                             .kernel = TERN__COPY,
                             .in = {is_put ? &wide : &narrow},
                             .out = {is_put ? &narrow : &wide},
                             .err = err};
    return tern__kernel_run(&call);
}

static int cast_all(const tern_ddp *ddp, const tern__bucket *bucket, int r, bool is_put, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; ddp->narrow_block[r] && i < bucket->extent_count && !status; i++)
        if (bucket->extents[i].window == tern__compress_window(ddp, r))
            status = cast(ddp, r, &bucket->extents[i], is_put, err);
    return status;
}

static int copy_all(const tern_ddp *ddp, const tern__bucket *bucket, int r, bool is_put, tern_error *err)
{
    tern_device *device = device_of(ddp, r);
    size_t size = tern_dtype_bytes(tern__compress_dtype(ddp, r));
    int status = TERN_OK;
    for (int i = 0; i < bucket->extent_count && !status; i++) {
        const tern__extent *e = &bucket->extents[i];
        if (e->window != tern__compress_window(ddp, r)) continue;
        char *here = window_of(ddp, r) + e->offset, *there = place_of(ddp, r, e);
        status = device->backend->stream_copy(device, TERN__STREAM_COMM, is_put ? here : there,
                                              is_put ? there : here, e->count * size, err);
    }
    return status;
}

/* ---- a backward ---- */

static int put(tern_ddp *ddp, int b, int r, tern_error *err)
{
    tern_device *device = device_of(ddp, r);
    tern__device_event **there = &ddp->stages[r].there[b];
    if (!*there) *there = device->backend->event_new(device, err);
    if (!*there) return err->code;
    int status = cast_all(ddp, &ddp->buckets[b], r, true, err);
    if (!status) status = follow(ddp, r, TERN__STREAM_STEP, TERN__STREAM_COMM, err);
    if (!status) status = copy_all(ddp, &ddp->buckets[b], r, true, err);
    return status ? status : device->backend->event_record(device, TERN__STREAM_COMM, *there, err);
}

int tern__staged_put(tern_ddp *ddp, int bucket, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r) && has_range(ddp, &ddp->buckets[bucket], r)) status = put(ddp, bucket, r, err);
    return status;
}

int tern__staged_test(const tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    const tern__bucket *bucket = &ddp->buckets[ddp->round.next_bucket];
    for (int r = 0; r < ddp->seal->range_count && !status; r++) {
        const tern__ddp_stage *stage = &ddp->stages[r];
        tern_device *device = device_of(ddp, r);
        if (!device || !has_range(ddp, bucket, r)) continue;
        tern__device_event *event = bucket->used ? stage->there[ddp->round.next_bucket] : stage->back;
        status = device->backend->event_query(device, event, err);
    }
    return status;
}

/* True if any rank has used a leaf of the bucket. */
static bool has_mean(const tern_ddp *ddp, const tern__bucket *bucket)
{
    bool fresh = false;
    for (int i = 0; i < bucket->count; i++) fresh |= ddp->seal->leaves[ddp->order[bucket->first + i]]->fresh;
    return fresh;
}

/* The copies wait for the step, which may still read the gradients that they overwrite. */
static int take(const tern_ddp *ddp, int r, tern_error *err)
{
    int status = follow(ddp, r, TERN__STREAM_STEP, TERN__STREAM_COMM, err);
    for (int b = 0; b < ddp->bucket_count && !status; b++)
        if (has_mean(ddp, &ddp->buckets[b])) status = copy_all(ddp, &ddp->buckets[b], r, false, err);
    if (!status) status = follow(ddp, r, TERN__STREAM_COMM, TERN__STREAM_STEP, err);
    for (int b = 0; b < ddp->bucket_count && !status; b++)
        if (has_mean(ddp, &ddp->buckets[b])) status = cast_all(ddp, &ddp->buckets[b], r, false, err);
    return status;
}

int tern__staged_take(const tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r)) status = take(ddp, r, err);
    return status;
}

/* ---- other copies to and from these devices ---- */

int tern__staged_depart(const tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r)) status = follow(ddp, r, TERN__STREAM_STEP, TERN__STREAM_COMM, err);
    return status;
}

int tern__staged_copy(const tern_ddp *ddp, void *to, const void *from, size_t bytes, tern_error *err)
{
    tern_device *target = tern__memory_device(to), *device = target ? target : tern__memory_device(from);
    int r = 0;
    while (r < ddp->seal->range_count && (!device || device_of(ddp, r) != device)) r++;
    if (r == ddp->seal->range_count) return tern__memory_copy(to, from, bytes, err);
    return device->backend->stream_copy(device, TERN__STREAM_COMM, to, from, bytes, err);
}

int tern__staged_return(const tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r)) status = follow(ddp, r, TERN__STREAM_COMM, TERN__STREAM_STEP, err);
    return status;
}

int tern__staged_returned(const tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++) {
        tern_device *device = device_of(ddp, r);
        if (device) status = device->backend->event_query(device, ddp->stages[r].back, err);
    }
    return status;
}
