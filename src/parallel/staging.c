/* staging.c - reduces gradients in a device's memory through pinned windows in the host's memory, if the back
 * end does not reach the device.
 *
 * When a bucket's gradients are complete, copies into the window are enqueued on the device's communication
 * stream, after all work that is on the step's stream by then: one copy per contiguous extent. Backward goes
 * on meanwhile, and the bucket is posted once the event after its copies has completed. The means are copied
 * back on the same stream, and the step's stream waits for them. A bucket to which this rank contributes
 * nothing is posted once the last backward's copies back have completed, because from then on its peers may
 * write to the window. */
#include "parallel/ddp.h"

/* Of a range in a staged device's memory. */
typedef struct stage {
    tern__device_event *turn;   /* of the step's stream; the communication stream waits for it */
    tern__device_event **there; /* [leaf_count + 2] by bucket: after the copies into the window */
    tern__device_event *back;   /* after the copies out of it; the step's stream waits for it */
    void *pinned;               /* the window, once it is pinned */
} stage;

struct tern__ddp_staging {
    stage stages[TERN__RANGES];
};

/* Returns the device of gradient range r if it is staged; NULL: it is reduced where it is. */
static tern_device *device_of(const tern_ddp *ddp, int r)
{
    return tern__ddp_home(ddp, r) ? NULL : ddp->seal->ranges[r].device;
}

tern_device *tern__ddp_staging_device(const tern_ddp *ddp)
{
    tern_device *device = NULL;
    for (int r = 0; r < ddp->seal->range_count && !device; r++) device = device_of(ddp, r);
    return device;
}

/* ---- life ---- */

static bool staging_is_on(const tern_ddp *ddp)
{
    return tern__ddp_staging_device(ddp) != NULL;
}

static int stage_open(tern_ddp *ddp, int r, tern_error *err)
{
    stage *s = &ddp->staging->stages[r];
    tern_device *device = device_of(ddp, r);
    const tern__range *range = &ddp->seal->ranges[r];
    size_t events = (size_t)ddp->seal->leaf_count + 2;
    size_t count = range->grad_bytes / tern_dtype_bytes(range->grad_dtype);
    void *window = tern__ddp_window_base(ddp, ddp->ranges[r].window);
    s->turn = device->backend->event_new(device, err);
    s->back = s->turn ? device->backend->event_new(device, err) : NULL;
    s->there = tern__ddp_alloc(ddp, NULL, events * sizeof(*s->there), err);
    if (!s->back || !s->there) return err->code;
    int status = device->backend->pin(device, window, count * tern_dtype_bytes(ddp->ranges[r].dtype), err);
    if (!status) s->pinned = window;
    return status;
}

static int staging_open(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r)) status = stage_open(ddp, r, err);
    return status;
}

/* Waits for copies that a failed backward has left enqueued. */
static void stage_close(const tern_ddp *ddp, int r)
{
    const stage *s = &ddp->staging->stages[r];
    tern_device *device = device_of(ddp, r);
    if (s->back) {
        device->backend->event_record(device, TERN__STREAM_COMM, s->back, NULL);
        device->backend->event_wait(device, s->back, NULL);
    }
    if (s->pinned) device->backend->unpin(device, s->pinned);
    for (int b = 0; s->there && b < ddp->seal->leaf_count + 2; b++)
        device->backend->event_free(device, s->there[b]);
    device->backend->event_free(device, s->back);
    device->backend->event_free(device, s->turn);
}

static int staging_close(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    for (int r = 0; r < ddp->seal->range_count; r++)
        if (device_of(ddp, r)) stage_close(ddp, r);
    return TERN_OK;
}

/* ---- a bucket's extents ---- */

/* Makes stream `second` wait for all work that is on stream `first` now. */
static int range_follow(const tern_ddp *ddp, int r, tern__device_stream first, tern__device_stream second,
                        tern_error *err)
{
    tern_device *device = device_of(ddp, r);
    tern__device_event *event =
        first == TERN__STREAM_STEP ? ddp->staging->stages[r].turn : ddp->staging->stages[r].back;
    int status = device->backend->event_record(device, first, event, err);
    return status ? status : device->backend->stream_wait(device, second, event, err);
}

static bool has_range(const tern_ddp *ddp, const tern__bucket *bucket, int r)
{
    bool has = false;
    for (int i = 0; i < bucket->extent_count; i++) has |= bucket->extents[i].window == ddp->ranges[r].window;
    return has;
}

static int copy_bucket(const tern_ddp *ddp, const tern__bucket *bucket, int r, bool is_put, tern_error *err)
{
    tern_device *device = device_of(ddp, r);
    const tern__ddp_range *range = &ddp->ranges[r];
    char *window = tern__ddp_window_base(ddp, range->window);
    int status = TERN_OK;
    for (int i = 0; i < bucket->extent_count && !status; i++) {
        const tern__extent *e = &bucket->extents[i];
        if (e->window != range->window) continue;
        char *here = window + e->offset, *there = range->grads + e->offset;
        status = device->backend->stream_copy(device, TERN__STREAM_COMM, is_put ? here : there,
                                              is_put ? there : here,
                                              e->count * tern_dtype_bytes(range->dtype), err);
    }
    return status;
}

/* ---- a backward ---- */

static int range_put(tern_ddp *ddp, int b, int r, tern_error *err)
{
    tern_device *device = device_of(ddp, r);
    tern__device_event **there = &ddp->staging->stages[r].there[b];
    if (!*there) *there = device->backend->event_new(device, err);
    if (!*there) return err->code;
    int status = range_follow(ddp, r, TERN__STREAM_STEP, TERN__STREAM_COMM, err);
    if (!status) status = copy_bucket(ddp, &ddp->buckets[b], r, true, err);
    return status ? status : device->backend->event_record(device, TERN__STREAM_COMM, *there, err);
}

static int staging_put(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK, b = ddp->round.next_put;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r) && has_range(ddp, &ddp->buckets[b], r)) status = range_put(ddp, b, r, err);
    return status;
}

/* Either this rank's gradients are in the window, or it has none and the device has read the means that will
 * be overwritten. */
static int bucket_test(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    const tern__bucket *bucket = &ddp->buckets[ddp->round.next_bucket];
    for (int r = 0; r < ddp->seal->range_count && !status; r++) {
        const stage *s = &ddp->staging->stages[r];
        tern_device *device = device_of(ddp, r);
        if (!device || !has_range(ddp, bucket, r)) continue;
        tern__device_event *event = bucket->used ? s->there[ddp->round.next_bucket] : s->back;
        status = device->backend->event_query(device, event, err);
    }
    return status;
}

/* The copies wait for the step, which may still read the gradients that they overwrite. */
static int range_take(const tern_ddp *ddp, int r, tern_error *err)
{
    int status = range_follow(ddp, r, TERN__STREAM_STEP, TERN__STREAM_COMM, err);
    for (int b = 0; b < ddp->bucket_count && !status; b++)
        if (tern__bucket_has_mean(ddp, &ddp->buckets[b]))
            status = copy_bucket(ddp, &ddp->buckets[b], r, false, err);
    return status ? status : range_follow(ddp, r, TERN__STREAM_COMM, TERN__STREAM_STEP, err);
}

static int staging_take(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !ddp->round.is_idle && !status; r++)
        if (device_of(ddp, r)) status = range_take(ddp, r, err);
    return status;
}

/* ---- other copies to and from these devices ---- */

int tern__ddp_staging_follow(const tern_ddp *ddp, tern__device_stream first, tern__device_stream second,
                             tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++)
        if (device_of(ddp, r)) status = range_follow(ddp, r, first, second, err);
    return status;
}

int tern__ddp_staging_copy(const tern_ddp *ddp, void *to, const void *from, size_t bytes, tern_error *err)
{
    tern_device *target = tern__memory_device(to), *device = target ? target : tern__memory_device(from);
    int r = 0;
    while (r < ddp->seal->range_count && (!device || device_of(ddp, r) != device)) r++;
    if (r == ddp->seal->range_count) return tern__memory_copy(to, from, bytes, err);
    return device->backend->stream_copy(device, TERN__STREAM_COMM, to, from, bytes, err);
}

int tern__ddp_staging_test(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 0; r < ddp->seal->range_count && !status; r++) {
        tern_device *device = device_of(ddp, r);
        if (device) status = device->backend->event_query(device, ddp->staging->stages[r].back, err);
    }
    return status;
}

const tern__ddp_part tern__staging_part = {TERN__DDP_STATE(staging), .is_on = staging_is_on,
                                           .at = {[TERN__DDP_OPEN] = staging_open,
                                                  [TERN__DDP_PUT] = staging_put,
                                                  [TERN__DDP_TEST] = bucket_test,
                                                  [TERN__DDP_TAKE] = staging_take,
                                                  [TERN__DDP_CLOSE] = staging_close}};
