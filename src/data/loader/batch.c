/* batch.c - tern_loader_next: batches as tensors of a scope. */
#include "autograd/autograd.h"
#include "data/loader/loader.h"

#include <tern/data.h>

/* A slot that the scope gives back to the loader when it ends. */
typedef struct held_slot {
    tern_loader *loader;
    int slot;
} held_slot;

static void batch_give_back(void *ctx)
{
    held_slot *held = ctx;
    tern__loader_slot_release(held->loader, held->slot);
}

static int hold_slot(tern_loader *loader, tern_scope *scope, int slot)
{
    held_slot *held = tern__scope_alloc(scope, sizeof(*held));
    if (held) *held = (held_slot){loader, slot};
    if (held && tern__scope_borrow(scope, batch_give_back, held) == TERN_OK) return TERN_OK;
    tern__loader_slot_release(loader, slot);
    return scope->error.code;
}

/* Returns true if a tensor may use the batch's memory: it is the memory of the scope's device. Pinned slots
 * are for the copier only, because a device copies from pinned memory asynchronously and might read a tensor
 * there after its slot was given back. */
static bool can_stay(const tern_loader *loader, const tern_scope *scope, const void *data)
{
    tern_device *device = tern__memory_device(data);
    return device ? device == scope->device : !scope->device->backend && !tern__loader_is_pinned(loader);
}

/* Makes a tensor (count, shape of a sample) of that memory, or of a copy of it. */
static tern_tensor *wrap(tern_scope *scope, void *data, bool stays, tern_dtype dtype, int64_t count, int ndim,
                         const int64_t *sample)
{
    int64_t shape[TERN_NDIM_MAX] = {count};
    for (int d = 0; d < ndim; d++) shape[d + 1] = sample[d];
    if (!stays) return tern_tensor_from(scope, data, dtype, ndim + 1, shape);
    tern__view view = tern__view_make(dtype, TERN__PLAIN, ndim + 1, shape);
    view.data = data;
    return tern__result_over(scope, &view);
}

static void wrap_batch(tern_loader *loader, tern_scope *scope, const tern__batch *plain, tern_batch *batch)
{
    const tern_dataset *dataset = tern__loader_dataset(loader);
    bool stays = can_stay(loader, scope, plain->x);
    batch->x = wrap(scope, plain->x, stays, dataset->dtype, plain->count, dataset->ndim, dataset->shape);
    batch->y = wrap(scope, plain->y, stays, tern__target_dtype(dataset), plain->count, dataset->target_ndim,
                    dataset->target_shape);
    batch->count = plain->count;
}

/* Copies the batch to the scope's device if that has memory of its own. */
static int copy_to_device(tern_loader *loader, tern_scope *scope, tern__batch *plain)
{
    tern_error err = {0};
    if (!scope->device->backend || !tern__loader_copy_to_device(loader, scope->device, plain, &err))
        return TERN_OK;
    return tern__scope_fail_with(scope, &err);
}

/* A loop over batches that never ends its failed scope would spin for ever without seeing the error. A step
 * can hold at most as many batches as there are slots, so a failed scope that is asked for more is never
 * ended. */
static bool may_go_on(const tern_loader *loader, tern_scope *scope)
{
    int spare = tern__loader_room(loader) - ++scope->refused;
    if (spare == -1)
        tern__log(
            TERN_LOG_ERROR,
            "tern_loader_next: %s; returning false from here on, because the program never ends the scope "
            "(tern_scope_end)",
            scope->error.text);
    return spare >= 0;
}

bool tern_loader_next(tern_loader *loader, tern_scope *scope, tern_batch *batch)
{
    *batch = (tern_batch){0};
    if (!scope) return false;
    if (scope->error.code) return may_go_on(loader, scope);
    tern_error err = {0};
    tern__batch plain;
    int status = tern__loader_next(loader, &plain, &err);
    if (tern__is_set(&err)) tern__scope_fail_with(scope, &err);
    if (status > 0 && hold_slot(loader, scope, plain.slot) == TERN_OK &&
        copy_to_device(loader, scope, &plain) == TERN_OK)
        wrap_batch(loader, scope, &plain, batch);
    return status != 0;
}
