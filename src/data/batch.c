#include "autograd/autograd.h"
#include "data/loader.h"

#include <tern/data.h>

/* A slot that goes back to its loader when the scope ends. */
typedef struct held_slot {
    tern_loader *loader;
    int slot;
} held_slot;

static void give_back(void *ctx)
{
    held_slot *held = ctx;
    tern__loader_slot_release(held->loader, held->slot);
}

static int hold_slot(tern_loader *loader, tern_scope *scope, int slot)
{
    held_slot *held = tern__scope_alloc(scope, sizeof(*held));
    if (held) *held = (held_slot){loader, slot};
    if (held && tern__scope_borrow(scope, give_back, held) == TERN_OK) return TERN_OK;
    tern__loader_slot_release(loader, slot);
    return scope->error.code;
}

/* (count, shape of a sample): over the slot's memory, or a copy where the scope's device has its own. */
static tern_tensor *wrap(tern_scope *scope, void *data, tern_dtype dtype, int64_t count, int ndim,
                         const int64_t *sample)
{
    int64_t shape[TERN_NDIM_MAX] = {count};
    for (int d = 0; d < ndim; d++) shape[d + 1] = sample[d];
    if (scope->device->backend) return tern_tensor_from(scope, data, dtype, ndim + 1, shape);
    tern__view view = tern__view_make(dtype, TERN__PLAIN, ndim + 1, shape);
    view.data = data;
    return tern__result_over(scope, &view);
}

static void wrap_batch(tern_loader *loader, tern_scope *scope, const tern__batch *plain, tern_batch *batch)
{
    const tern_dataset *dataset = tern__loader_dataset(loader);
    batch->x = wrap(scope, plain->x, TERN_F32, plain->count, dataset->ndim, dataset->shape);
    batch->y = wrap(scope, plain->y, tern__target_dtype(dataset), plain->count, dataset->target_ndim,
                    dataset->target_shape);
    batch->count = plain->count;
}

bool tern_loader_next(tern_loader *loader, tern_scope *scope, tern_batch *batch)
{
    *batch = (tern_batch){0};
    if (scope->error.code) return true;
    tern_error err = {0};
    tern__batch plain;
    int status = tern__loader_next(loader, &plain, &err);
    if (status < 0) tern__scope_fail_with(scope, &err);
    if (status > 0 && hold_slot(loader, scope, plain.slot) == TERN_OK)
        wrap_batch(loader, scope, &plain, batch);
    return status != 0;
}
