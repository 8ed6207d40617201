/* ferry.c - copies between devices' memory and the staging ring (ferry.h). */
#include "comm/call/ferry.h"

#include "comm/call/staging.h"

#include <string.h>

struct tern__ferry {
    tern__close_listener listener; /* first: the device calls it when it closes */
    tern__ferry *next;
    tern__fleet *fleet;
    tern_device *device;
    tern__device_event *turn;                  /* recorded on one stream; the other waits for it */
    tern__device_event *places[TERN__FLIGHTS]; /* on the communication stream, after a place's copies */
    bool is_busy;                              /* copies are enqueued, but no event is recorded yet */
    char *landing;                             /* [FLIGHTS][world][landing_bytes] pinned, or NULL */
};

/* ---- life ---- */

static void free_marks(const tern__ferry *ferry)
{
    const tern__device_backend *backend = ferry->device->backend;
    backend->event_free(ferry->device, ferry->turn);
    for (int i = 0; i < TERN__FLIGHTS; i++) backend->event_free(ferry->device, ferry->places[i]);
}

static void wait_all(const tern__ferry *ferry)
{
    for (int i = 0; i < TERN__FLIGHTS; i++)
        ferry->device->backend->event_wait(ferry->device, ferry->places[i], NULL);
}

/* Frees a ferry when its device closes. The next device pins the ring again. */
static void on_close(tern__close_listener *listener)
{
    tern__ferry *ferry = (tern__ferry *)listener, **link = &ferry->fleet->first;
    tern__fleet *fleet = ferry->fleet;
    for (const tern__ferry *any = fleet->first; any; any = any->next) wait_all(any);
    while (*link != ferry) link = &(*link)->next;
    *link = ferry->next;
    if (fleet->pinned == ferry->device) {
        ferry->device->backend->unpin(ferry->device, fleet->ring);
        fleet->pinned = NULL;
    }
    ferry->device->backend->pinned_free(ferry->device, ferry->landing);
    free_marks(ferry);
    tern__free(ferry);
}

void tern__fleet_close(tern__fleet *fleet)
{
    while (fleet->first) {
        tern__device_unlisten(fleet->first->device, &fleet->first->listener);
        on_close(&fleet->first->listener);
    }
}

static int make_marks(tern__ferry *ferry, tern_error *err)
{
    const tern__device_backend *backend = ferry->device->backend;
    ferry->turn = backend->event_new(ferry->device, err);
    bool made = ferry->turn;
    for (int i = 0; i < TERN__FLIGHTS && made; i++)
        made = (ferry->places[i] = backend->event_new(ferry->device, err));
    return made ? TERN_OK : err->code;
}

static tern__ferry *ferry_new(tern__fleet *fleet, tern_device *device, tern_error *err)
{
    tern__ferry *ferry = tern__alloc(sizeof(*ferry), "tern_group", err);
    if (!ferry) return NULL;
    *ferry =
        (tern__ferry){.listener.closing = on_close, .next = fleet->first, .fleet = fleet, .device = device};
    if (make_marks(ferry, err)) {
        free_marks(ferry);
        tern__free(ferry);
        return NULL;
    }
    fleet->first = ferry;
    tern__device_listen(device, &ferry->listener);
    return ferry;
}

static tern__ferry *find(const tern__fleet *fleet, const tern_device *device)
{
    tern__ferry *ferry = device ? fleet->first : NULL;
    while (ferry && ferry->device != device) ferry = ferry->next;
    return ferry;
}

static int pin(tern__fleet *fleet, tern_device *device, tern_error *err)
{
    if (fleet->pinned) return TERN_OK;
    int status = device->backend->pin(device, fleet->ring, TERN__FLIGHTS * fleet->place_bytes, err);
    if (!status) fleet->pinned = device;
    return status;
}

/* ---- copies ---- */

int tern__ferry_begin(tern__fleet *fleet, const void *data, tern_error *err)
{
    tern_device *device = tern__memory_device(data);
    if (!device) return TERN_OK;
    tern__ferry *ferry = find(fleet, device);
    if (!ferry && !(ferry = ferry_new(fleet, device, err))) return err->code;
    int status = pin(fleet, device, err);
    if (!status) status = device->backend->event_record(device, TERN__STREAM_STEP, ferry->turn, err);
    return status ? status : device->backend->stream_wait(device, TERN__STREAM_COMM, ferry->turn, err);
}

int tern__ferry_end(tern__fleet *fleet, const void *data, tern_error *err)
{
    tern_device *device = tern__memory_device(data);
    const tern__ferry *ferry = find(fleet, device);
    if (!ferry) return TERN_OK;
    int status = device->backend->event_record(device, TERN__STREAM_COMM, ferry->turn, err);
    return status ? status : device->backend->stream_wait(device, TERN__STREAM_STEP, ferry->turn, err);
}

int tern__ferry_copy(tern__fleet *fleet, void *to, const void *from, size_t bytes, tern_error *err)
{
    tern_device *target = tern__memory_device(to), *device = target ? target : tern__memory_device(from);
    tern__ferry *ferry = find(fleet, device);
    if (!ferry) {
        memcpy(to, from, bytes);
        return TERN_OK;
    }
    ferry->is_busy = true;
    return device->backend->stream_copy(device, TERN__STREAM_COMM, to, from, bytes, err);
}

int tern__ferry_mark(tern__fleet *fleet, int place, tern_error *err)
{
    int status = TERN_OK;
    for (tern__ferry *f = fleet->first; f && !status; f = f->next) {
        if (f->is_busy)
            status = f->device->backend->event_record(f->device, TERN__STREAM_COMM, f->places[place], err);
        f->is_busy = false;
    }
    return status;
}

int tern__ferry_test(tern__fleet *fleet, int place, tern_error *err)
{
    int status = TERN_OK;
    for (const tern__ferry *f = fleet->first; f && !status; f = f->next)
        status = f->device->backend->event_query(f->device, f->places[place], err);
    return status;
}

int tern__ferry_wait(tern__fleet *fleet, int place, tern_error *err)
{
    int status = TERN_OK;
    for (const tern__ferry *f = fleet->first; f && !status; f = f->next)
        status = f->device->backend->event_wait(f->device, f->places[place], err);
    return status;
}

/* ---- moves ---- */

void *tern__ferry_landing(tern__fleet *fleet, void *data, int place, int rank, tern_error *err)
{
    tern_device *device = fleet->first ? tern__memory_device(data) : NULL;
    tern__ferry *ferry = find(fleet, device);
    size_t each = fleet->landing_bytes, world = (size_t)fleet->world;
    if (!ferry) return data;
    if (!ferry->landing) ferry->landing = device->backend->pinned_new(device, TERN__FLIGHTS * world * each);
    if (ferry->landing) return ferry->landing + ((size_t)place * world + (size_t)rank) * each;
    tern__error_set(err, "tern_gather", TERN_E_MEMORY, "cannot pin %zu bytes for %s",
                    TERN__FLIGHTS * world * each, device->name);
    return NULL;
}
