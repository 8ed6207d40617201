/* carry.c - batches on their way to a device with memory of its own.
 *
 * With the first batch for a scope on such a device the loader's slots are pinned where they are, and it
 * takes some blocks of the device's memory. From then on each call that hands out a batch asks for the copies
 * of the next ones that are fetched, in the device's copying stream, and has the step's stream follow the
 * copy of its own batch, which an earlier call has asked for. Two things are used anew, in their order of
 * use:
 *
 * A block, when its batch was given back: the step's stream gets an event there, `left`, and the copying
 * stream follows that before it writes to the block again.
 *
 * A slot, when its batch was given back too, but the host may be steps ahead of the device, which then has
 * not read the slot yet. Whoever fetches into it waits for the event behind its copy, `there`: a worker, and
 * the caller only where there are no workers. So the host gets no further ahead than there are slots.
 *
 * All else is asked by the thread that asks for batches and ends scopes, and nothing of it waits. */
#include "data/loader_inner.h"

#include <time.h>

enum {
    AHEAD = 2, /* copies that are under way or there before their batch is asked for */
    ALIGN = 256,
    NAP_NS = 200000
};

static const char FUNC[] = "tern_loader_next";

/* ---- copies ---- */

/* Whoever had the memory before is done with it where the step's stream is. */
static int copy_fill(const tern_loader *loader, tern__copy *copy, tern_error *err)
{
    tern_device *device = loader->carrier->device;
    size_t x_bytes = tern__align_up(loader->x_step, ALIGN);
    if (!copy->left) copy->left = device->backend->event_new(device, err);
    if (!copy->left) return err->code;
    copy->x = tern__memory_new(device, x_bytes + loader->y_step, FUNC, err);
    if (!copy->x) return TERN_E_MEMORY;
    copy->y = copy->x + x_bytes;
    return device->backend->event_record(device, TERN__STREAM_STEP, copy->left, err);
}

/* The block that has been free for longest; NULL: none is. */
static tern__copy *free_copy(const tern_loader *loader)
{
    tern__copy *found = NULL;
    for (int i = 0; i < loader->slot_count; i++) {
        tern__copy *copy = &loader->carrier->copies[i];
        if (copy->x && !copy->taken && (!found || copy->given_back < found->given_back)) found = copy;
    }
    return found;
}

/* One that has no memory yet: there are as many as slots. */
static tern__copy *empty_copy(const tern_loader *loader)
{
    tern__copy *copy = loader->carrier->copies;
    while (copy->x) copy++;
    return copy;
}

static int send(tern_loader *loader, tern__loader_slot *slot, tern__copy *copy, tern_error *err)
{
    tern_device *device = loader->carrier->device;
    const tern__device_backend *backend = device->backend;
    const tern__batch *batch = &slot->batch;
    size_t x_bytes = (size_t)(batch->count * loader->sample_floats) * sizeof(float);
    size_t y_bytes = (size_t)batch->count * loader->target_bytes;
    int status = backend->stream_wait(device, TERN__STREAM_COPY, copy->left, err);
    if (!status) status = backend->stream_copy(device, TERN__STREAM_COPY, copy->x, batch->x, x_bytes, err);
    if (!status) status = backend->stream_copy(device, TERN__STREAM_COPY, copy->y, batch->y, y_bytes, err);
    if (!status) status = backend->event_record(device, TERN__STREAM_COPY, slot->there, err);
    if (status) return status;
    copy->taken = true;
    slot->copy = copy;
    slot->number = ++loader->carrier->sent;
    return TERN_OK;
}

/* A batch that is handed out, in a block more if all are held. */
static int send_now(tern_loader *loader, tern__loader_slot *slot, tern_error *err)
{
    tern__copy *copy = free_copy(loader);
    int status = TERN_OK;
    if (!copy) status = copy_fill(loader, copy = empty_copy(loader), err);
    return status ? status : send(loader, slot, copy, err);
}

/* The next batches as far as they are fetched, in their order. What fails here is tried again, and told, when
 * its batch is asked for. */
static void send_ahead(tern_loader *loader)
{
    for (int64_t i = loader->next_taken; i < loader->next_taken + AHEAD; i++) {
        tern__loader_slot *slot = tern__loader_slot_of(loader, i);
        if (!slot && !tern__loader_is_skipped(loader, i)) return;
        if (!slot || slot->copy || tern__is_set(&slot->error)) continue;
        tern__copy *copy = free_copy(loader);
        tern_error err = {0};
        if (!copy || send(loader, slot, copy, &err)) return;
    }
}

/* Asks now and then: to wait for an event may keep a core busy, and where the device is the slower one all
 * workers are here most of the time. */
int tern__slot_await(const tern_loader *loader, tern__loader_slot *slot, tern_error *err)
{
    if (!slot->number) return TERN_OK;
    tern_device *device = loader->carrier->device;
    int status;
    while ((status = device->backend->event_query(device, slot->there, err)) == TERN_PENDING)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    if (!status) slot->number = 0;
    return status;
}

void tern__slot_leave(const tern_loader *loader, tern__loader_slot *slot)
{
    tern__copy *copy = slot->copy;
    if (!copy) return;
    tern_device *device = loader->carrier->device;
    device->backend->event_record(device, TERN__STREAM_STEP, copy->left, NULL);
    copy->taken = false;
    copy->given_back = ++loader->carrier->given_back;
    slot->copy = NULL;
}

/* ---- the carrier ---- */

static int pin_slots(tern_loader *loader, tern_error *err)
{
    tern__carrier *carrier = loader->carrier;
    tern_device *device = carrier->device;
    int status = device->backend->pin(device, loader->x, loader->x_bytes, err);
    carrier->x_pinned = !status;
    if (!status) status = device->backend->pin(device, loader->y, loader->y_bytes, err);
    carrier->y_pinned = !status;
    return status;
}

static int fill(tern_loader *loader, tern_error *err)
{
    tern__carrier *carrier = loader->carrier;
    tern_device *device = carrier->device;
    carrier->copies = tern__alloc(sizeof(tern__copy) * (size_t)loader->slot_count, FUNC, err);
    int status = carrier->copies ? pin_slots(loader, err) : TERN_E_MEMORY;
    for (int i = 0; i < loader->slot_count && !status; i++) {
        tern__loader_slot *slot = &loader->slots[i];
        slot->there = device->backend->event_new(device, err);
        status = slot->there ? TERN_OK : err->code;
    }
    for (int i = 0; i < TERN__MIN(AHEAD + 1, loader->slot_count) && !status; i++)
        status = copy_fill(loader, &carrier->copies[i], err);
    return status;
}

static int carrier_new(tern_loader *loader, tern_device *device, tern_error *err)
{
    tern__carrier *carrier = tern__alloc(sizeof(*carrier), FUNC, err);
    if (!carrier) return TERN_E_MEMORY;
    carrier->device = device;
    loader->carrier = carrier;
    int status = fill(loader, err);
    if (status) tern__carrier_free(loader);
    return status;
}

/* Blocks go back behind what was copied to them, and slots are unpinned when nobody reads them. */
static void settle(const tern_loader *loader)
{
    tern_device *device = loader->carrier->device;
    tern__device_event *event = loader->slots[0].there;
    if (!event || device->backend->event_record(device, TERN__STREAM_COPY, event, NULL)) return;
    device->backend->stream_wait(device, TERN__STREAM_STEP, event, NULL);
    device->backend->event_wait(device, event, NULL);
}

void tern__carrier_free(tern_loader *loader)
{
    tern__carrier *carrier = loader->carrier;
    if (!carrier) return;
    tern_device *device = carrier->device;
    settle(loader);
    for (int i = 0; i < loader->slot_count; i++) {
        if (loader->slots[i].there) device->backend->event_free(device, loader->slots[i].there);
        loader->slots[i].there = NULL;
        if (!carrier->copies) continue;
        tern__device_free(device, carrier->copies[i].x);
        if (carrier->copies[i].left) device->backend->event_free(device, carrier->copies[i].left);
    }
    if (carrier->x_pinned) device->backend->unpin(device, loader->x);
    if (carrier->y_pinned) device->backend->unpin(device, loader->y);
    tern__free(carrier->copies);
    tern__free(carrier);
    loader->carrier = NULL;
}

static int carry(tern_loader *loader, tern__loader_slot *slot, tern_error *err)
{
    tern_device *device = loader->carrier->device;
    int status = slot->copy ? TERN_OK : send_now(loader, slot, err);
    if (!status) status = device->backend->stream_wait(device, TERN__STREAM_STEP, slot->there, err);
    if (!status) send_ahead(loader);
    return status;
}

int tern__loader_carry(tern_loader *loader, tern_device *device, tern__batch *batch, tern_error *err)
{
    tern__loader_slot *slot = &loader->slots[batch->slot];
    pthread_mutex_lock(&loader->lock);
    int status = loader->carrier ? TERN_OK : carrier_new(loader, device, err);
    if (!status) status = carry(loader, slot, err);
    if (!status) {
        batch->x = (float *)slot->copy->x;
        batch->y = slot->copy->y;
    }
    pthread_mutex_unlock(&loader->lock);
    return status;
}

bool tern__loader_is_pinned(const tern_loader *loader)
{
    return loader->carrier != NULL;
}
