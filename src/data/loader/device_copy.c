/* device_copy.c - copies batches to a device with memory of its own, ahead of their use.
 *
 * The first batch for a scope on such a device pins the loader's slots in place and allocates some blocks of
 * the device's memory. From then on, each call that hands out a batch starts the copies of the next fetched
 * batches on the device's copy stream, and makes the step's stream wait for the copy of its own batch, which
 * an earlier call started. Blocks and slots are reused in the order of their use:
 *
 * - A block, once its batch was given back: the step's stream then records the event `released`, and the copy
 * stream waits for it before it writes to the block again.
 * - A slot, once its batch was given back, too. But the host may be steps ahead of the device, which then has
 * not read the slot yet. The thread that fetches into the slot therefore waits for the event after its copy,
 * `copied`: a worker or, without workers, the caller. So the host gets no further ahead than there are slots.
 *
 * Everything else runs on the thread that asks for batches and ends scopes, and none of it waits. */
#include "data/loader/loader_inner.h"

#include <time.h>

enum {
    AHEAD = 2, /* copies started before their batch is asked for */
    ALIGN = 256,
    NAP_NS = 200000
};

static const char FUNC[] = "tern_loader_next";

/* ---- copies ---- */

/* Allocates a block. The step's stream may still use its memory, up to this point, for what had it before. */
static int copy_fill(const tern_loader *loader, tern__batch_copy *copy, tern_error *err)
{
    tern_device *device = loader->copier->device;
    size_t x_bytes = tern__align_up(loader->x_step, ALIGN);
    if (!copy->released) copy->released = device->backend->event_new(device, err);
    if (!copy->released) return err->code;
    copy->x = tern__memory_new(device, x_bytes + loader->y_step, FUNC, err);
    if (!copy->x) return TERN_E_MEMORY;
    copy->y = copy->x + x_bytes;
    return device->backend->event_record(device, TERN__STREAM_STEP, copy->released, err);
}

/* Returns the block that has been free for longest, or NULL if none is free. */
static tern__batch_copy *free_copy(const tern_loader *loader)
{
    tern__batch_copy *found = NULL;
    for (int i = 0; i < loader->slot_count; i++) {
        tern__batch_copy *copy = &loader->copier->copies[i];
        if (copy->x && !copy->in_use && (!found || copy->release_number < found->release_number))
            found = copy;
    }
    return found;
}

/* Returns a block without memory. There is one: there are as many blocks as slots. */
static tern__batch_copy *empty_copy(const tern_loader *loader)
{
    tern__batch_copy *copy = loader->copier->copies;
    while (copy->x) copy++;
    return copy;
}

static int copier_send(tern_loader *loader, tern__loader_slot *slot, tern__batch_copy *copy, tern_error *err)
{
    tern_device *device = loader->copier->device;
    const tern__device_backend *backend = device->backend;
    const tern__batch *batch = &slot->batch;
    size_t x_bytes = (size_t)(batch->count * loader->sample_values) * loader->value_bytes;
    size_t y_bytes = (size_t)batch->count * loader->target_bytes;
    int status = backend->stream_wait(device, TERN__STREAM_COPY, copy->released, err);
    if (!status) status = backend->stream_copy(device, TERN__STREAM_COPY, copy->x, batch->x, x_bytes, err);
    if (!status) status = backend->stream_copy(device, TERN__STREAM_COPY, copy->y, batch->y, y_bytes, err);
    if (!status) status = backend->event_record(device, TERN__STREAM_COPY, slot->copied, err);
    if (status) return status;
    copy->in_use = true;
    slot->copy = copy;
    slot->copy_number = ++loader->copier->sent;
    return TERN_OK;
}

/* Copies a batch that is being handed out; allocates another block if all are in use. */
static int send_now(tern_loader *loader, tern__loader_slot *slot, tern_error *err)
{
    tern__batch_copy *copy = free_copy(loader);
    int status = TERN_OK;
    if (!copy) status = copy_fill(loader, copy = empty_copy(loader), err);
    return status ? status : copier_send(loader, slot, copy, err);
}

/* Starts the copies of the next batches, in order, as far as they are fetched. A failure is not reported
 * here: the copy is tried again when its batch is asked for. */
static void send_ahead(tern_loader *loader)
{
    for (int64_t i = loader->next_taken; i < loader->next_taken + AHEAD; i++) {
        tern__loader_slot *slot = tern__loader_slot_of(loader, i);
        if (!slot && !tern__loader_is_skipped(loader, i)) return;
        if (!slot || slot->copy || tern__is_set(&slot->error)) continue;
        tern__batch_copy *copy = free_copy(loader);
        tern_error err = {0};
        if (!copy || copier_send(loader, slot, copy, &err)) return;
    }
}

/* Polls with pauses: waiting for an event may keep a core busy, and where the device is slower than the
 * loader, all workers are here most of the time. */
int tern__slot_await_copy(const tern_loader *loader, tern__loader_slot *slot, tern_error *err)
{
    if (!slot->copy_number) return TERN_OK;
    tern_device *device = loader->copier->device;
    int status;
    while ((status = device->backend->event_query(device, slot->copied, err)) == TERN_PENDING)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    if (!status) slot->copy_number = 0;
    return status;
}

void tern__slot_release_copy(const tern_loader *loader, tern__loader_slot *slot)
{
    tern__batch_copy *copy = slot->copy;
    if (!copy) return;
    tern_device *device = loader->copier->device;
    device->backend->event_record(device, TERN__STREAM_STEP, copy->released, NULL);
    copy->in_use = false;
    copy->release_number = ++loader->copier->released_count;
    slot->copy = NULL;
}

/* ---- the copier ---- */

static int pin_slots(tern_loader *loader, tern_error *err)
{
    tern__device_copier *copier = loader->copier;
    tern_device *device = copier->device;
    int status = device->backend->pin(device, loader->x, loader->x_bytes, err);
    copier->x_pinned = !status;
    if (!status) status = device->backend->pin(device, loader->y, loader->y_bytes, err);
    copier->y_pinned = !status;
    return status;
}

static int copier_fill(tern_loader *loader, tern_error *err)
{
    tern__device_copier *copier = loader->copier;
    tern_device *device = copier->device;
    copier->copies = tern__alloc(sizeof(tern__batch_copy) * (size_t)loader->slot_count, FUNC, err);
    int status = copier->copies ? pin_slots(loader, err) : TERN_E_MEMORY;
    for (int i = 0; i < loader->slot_count && !status; i++) {
        tern__loader_slot *slot = &loader->slots[i];
        slot->copied = device->backend->event_new(device, err);
        status = slot->copied ? TERN_OK : err->code;
    }
    for (int i = 0; i < TERN__MIN(AHEAD + 1, loader->slot_count) && !status; i++)
        status = copy_fill(loader, &copier->copies[i], err);
    return status;
}

static int copier_new(tern_loader *loader, tern_device *device, tern_error *err)
{
    tern__device_copier *copier = tern__alloc(sizeof(*copier), FUNC, err);
    if (!copier) return TERN_E_MEMORY;
    copier->device = device;
    loader->copier = copier;
    int status = copier_fill(loader, err);
    if (status) tern__device_copier_free(loader);
    return status;
}

/* Waits for all copies: the slots are about to be unpinned. The step's stream waits for them as well, so that
 * blocks are freed only after the copies into them. */
static void copier_settle(const tern_loader *loader)
{
    tern_device *device = loader->copier->device;
    tern__device_event *event = loader->slots[0].copied;
    if (!event || device->backend->event_record(device, TERN__STREAM_COPY, event, NULL)) return;
    device->backend->stream_wait(device, TERN__STREAM_STEP, event, NULL);
    device->backend->event_wait(device, event, NULL);
}

void tern__device_copier_free(tern_loader *loader)
{
    tern__device_copier *copier = loader->copier;
    if (!copier) return;
    tern_device *device = copier->device;
    copier_settle(loader);
    for (int i = 0; i < loader->slot_count; i++) {
        if (loader->slots[i].copied) device->backend->event_free(device, loader->slots[i].copied);
        loader->slots[i].copied = NULL;
        if (!copier->copies) continue;
        tern__device_free(device, copier->copies[i].x);
        if (copier->copies[i].released) device->backend->event_free(device, copier->copies[i].released);
    }
    if (copier->x_pinned) device->backend->unpin(device, loader->x);
    if (copier->y_pinned) device->backend->unpin(device, loader->y);
    tern__free(copier->copies);
    tern__free(copier);
    loader->copier = NULL;
}

static int copy_batch(tern_loader *loader, tern__loader_slot *slot, tern_error *err)
{
    tern_device *device = loader->copier->device;
    int status = slot->copy ? TERN_OK : send_now(loader, slot, err);
    if (!status) status = device->backend->stream_wait(device, TERN__STREAM_STEP, slot->copied, err);
    if (!status) send_ahead(loader);
    return status;
}

int tern__loader_copy_to_device(tern_loader *loader, tern_device *device, tern__batch *batch, tern_error *err)
{
    tern__loader_slot *slot = &loader->slots[batch->slot];
    pthread_mutex_lock(&loader->lock);
    int status = loader->copier ? TERN_OK : copier_new(loader, device, err);
    if (!status) status = copy_batch(loader, slot, err);
    if (!status) {
        batch->x = (float *)slot->copy->x;
        batch->y = slot->copy->y;
    }
    pthread_mutex_unlock(&loader->lock);
    return status;
}

bool tern__loader_is_pinned(const tern_loader *loader)
{
    return loader->copier != NULL;
}
