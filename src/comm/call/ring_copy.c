/* ring_copy.c - copies between devices' memory and the staging ring (ring_copy.h). */
#include "comm/call/ring_copy.h"

#include "comm/call/staging.h"

#include <string.h>

struct tern__ring_copy {
    tern__close_listener listener; /* first: the device calls it when it closes */
    tern__ring_copy *next;
    tern__ring_copies *copies;
    tern_device *device;
    tern__device_event *turn;                  /* recorded on one stream; the other waits for it */
    tern__device_event *places[TERN__FLIGHTS]; /* on the communication stream, after a place's copies */
    bool is_busy;                              /* copies are enqueued, but no event is recorded yet */
    char *landing;                             /* [FLIGHTS][world][landing_bytes] pinned, or NULL */
};

/* ---- life ---- */

static void free_marks(const tern__ring_copy *copy)
{
    const tern__device_backend *backend = copy->device->backend;
    backend->event_free(copy->device, copy->turn);
    for (int i = 0; i < TERN__FLIGHTS; i++) backend->event_free(copy->device, copy->places[i]);
}

static void wait_all(const tern__ring_copy *copy)
{
    for (int i = 0; i < TERN__FLIGHTS; i++)
        copy->device->backend->event_wait(copy->device, copy->places[i], NULL);
}

/* Frees a device's ring copy when its device closes. The next device pins the ring again. */
static void on_close(tern__close_listener *listener)
{
    tern__ring_copy *copy = (tern__ring_copy *)listener, **link = &copy->copies->first;
    tern__ring_copies *copies = copy->copies;
    for (const tern__ring_copy *any = copies->first; any; any = any->next) wait_all(any);
    while (*link != copy) link = &(*link)->next;
    *link = copy->next;
    if (copies->pinned == copy->device) {
        copy->device->backend->unpin(copy->device, copies->ring);
        copies->pinned = NULL;
    }
    copy->device->backend->pinned_free(copy->device, copy->landing);
    free_marks(copy);
    tern__free(copy);
}

void tern__ring_copies_close(tern__ring_copies *copies)
{
    while (copies->first) {
        tern__device_unlisten(copies->first->device, &copies->first->listener);
        on_close(&copies->first->listener);
    }
}

static int make_marks(tern__ring_copy *copy, tern_error *err)
{
    const tern__device_backend *backend = copy->device->backend;
    copy->turn = backend->event_new(copy->device, err);
    bool made = copy->turn;
    for (int i = 0; i < TERN__FLIGHTS && made; i++)
        made = (copy->places[i] = backend->event_new(copy->device, err));
    return made ? TERN_OK : err->code;
}

static tern__ring_copy *ring_copy_new(tern__ring_copies *copies, tern_device *device, tern_error *err)
{
    tern__ring_copy *copy = tern__alloc(sizeof(*copy), "tern_group", err);
    if (!copy) return NULL;
    *copy = (tern__ring_copy){
        .listener.closing = on_close, .next = copies->first, .copies = copies, .device = device};
    if (make_marks(copy, err)) {
        free_marks(copy);
        tern__free(copy);
        return NULL;
    }
    copies->first = copy;
    tern__device_listen(device, &copy->listener);
    return copy;
}

static tern__ring_copy *find_copy(const tern__ring_copies *copies, const tern_device *device)
{
    tern__ring_copy *copy = device ? copies->first : NULL;
    while (copy && copy->device != device) copy = copy->next;
    return copy;
}

static int pin_ring(tern__ring_copies *copies, tern_device *device, tern_error *err)
{
    if (copies->pinned) return TERN_OK;
    int status = device->backend->pin(device, copies->ring, TERN__FLIGHTS * copies->place_bytes, err);
    if (!status) copies->pinned = device;
    return status;
}

/* ---- copies ---- */

int tern__ring_copy_begin(tern__ring_copies *copies, const void *data, tern_error *err)
{
    tern_device *device = tern__memory_device(data);
    if (!device) return TERN_OK;
    tern__ring_copy *copy = find_copy(copies, device);
    if (!copy && !(copy = ring_copy_new(copies, device, err))) return err->code;
    int status = pin_ring(copies, device, err);
    if (!status) status = device->backend->event_record(device, TERN__STREAM_STEP, copy->turn, err);
    return status ? status : device->backend->stream_wait(device, TERN__STREAM_COMM, copy->turn, err);
}

int tern__ring_copy_end(tern__ring_copies *copies, const void *data, tern_error *err)
{
    tern_device *device = tern__memory_device(data);
    const tern__ring_copy *copy = find_copy(copies, device);
    if (!copy) return TERN_OK;
    int status = device->backend->event_record(device, TERN__STREAM_COMM, copy->turn, err);
    return status ? status : device->backend->stream_wait(device, TERN__STREAM_STEP, copy->turn, err);
}

int tern__ring_copy_run(tern__ring_copies *copies, void *to, const void *from, size_t bytes, tern_error *err)
{
    tern_device *target = tern__memory_device(to), *device = target ? target : tern__memory_device(from);
    tern__ring_copy *copy = find_copy(copies, device);
    if (!copy) {
        memcpy(to, from, bytes);
        return TERN_OK;
    }
    copy->is_busy = true;
    return device->backend->stream_copy(device, TERN__STREAM_COMM, to, from, bytes, err);
}

int tern__ring_copy_mark(tern__ring_copies *copies, int place, tern_error *err)
{
    int status = TERN_OK;
    for (tern__ring_copy *f = copies->first; f && !status; f = f->next) {
        if (f->is_busy)
            status = f->device->backend->event_record(f->device, TERN__STREAM_COMM, f->places[place], err);
        f->is_busy = false;
    }
    return status;
}

int tern__ring_copy_test(tern__ring_copies *copies, int place, tern_error *err)
{
    int status = TERN_OK;
    for (const tern__ring_copy *f = copies->first; f && !status; f = f->next)
        status = f->device->backend->event_query(f->device, f->places[place], err);
    return status;
}

int tern__ring_copy_wait(tern__ring_copies *copies, int place, tern_error *err)
{
    int status = TERN_OK;
    for (const tern__ring_copy *f = copies->first; f && !status; f = f->next)
        status = f->device->backend->event_wait(f->device, f->places[place], err);
    return status;
}

/* ---- moves ---- */

void *tern__ring_copy_landing(tern__ring_copies *copies, void *data, int place, int rank, tern_error *err)
{
    tern_device *device = copies->first ? tern__memory_device(data) : NULL;
    tern__ring_copy *copy = find_copy(copies, device);
    size_t each = copies->landing_bytes, world = (size_t)copies->world;
    if (!copy) return data;
    if (!copy->landing) copy->landing = device->backend->pinned_new(device, TERN__FLIGHTS * world * each);
    if (copy->landing) return copy->landing + ((size_t)place * world + (size_t)rank) * each;
    tern__error_set(err, "tern_gather", TERN_E_MEMORY, "cannot pin %zu bytes for %s",
                    TERN__FLIGHTS * world * each, device->name);
    return NULL;
}
