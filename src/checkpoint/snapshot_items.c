/* snapshot_items.c - adds the parts of a run to a snapshot, by their state dicts. */
#include "autograd/autograd.h"
#include "checkpoint/snapshot.h"
#include "tensor/field.h"

#include <string.h>

/* ---- state that is the same on all ranks, or rank 0's ---- */

static tern_object *save_module(void *ctx, tern_error *err)
{
    return tern_module_state_dict(ctx, err);
}

static int load_module(const tern_object *state, void *ctx, tern_error *err)
{
    return tern_module_state_dict_load(ctx, state, NULL, NULL, err);
}

static tern_object *save_int(void *ctx, tern_error *err)
{
    return tern_object_int(*(const int64_t *)ctx, err);
}

static int load_int(const tern_object *state, void *ctx, tern_error *err)
{
    return tern_object_to_int(state, ctx, err);
}

static int snapshot_add(tern_snapshot *snapshot, const char *func, const char *name,
                        tern_snapshot_save_fn save, tern_snapshot_load_fn load, void *ctx, tern_error *err)
{
    tern__snapshot_item item = {.name = (char *)name, .save = save, .load = load, .ctx = ctx};
    if (tern__is_set(err)) return err->code;
    if (!ctx)
        return tern__error_set(err, func, TERN_E_INVALID, "the object for \"%s\" is NULL", name ? name : "");
    return tern__snapshot_add(snapshot, func, &item, err);
}

static void add_module_devices(const void *ctx, tern__choosers *list)
{
    const tern_module *module = ctx;
    for (int i = 0; i < tern_state_count(module); i++)
        tern__choosers_add(list, tern_state_get(module, i).tensor->device);
}

int tern_snapshot_add_module(tern_snapshot *snapshot, const char *name, tern_module *module, tern_error *err)
{
    int status = snapshot_add(snapshot, __func__, name, save_module, load_module, module, err);
    if (!status) snapshot->items[snapshot->count - 1].add_devices = add_module_devices;
    return status;
}

/* Defines save_KIND and load_KIND for an object whose state dict is `saved`. */
#define DEFINE(kind, saved)                                                                                  \
    static tern_object *save_##kind(void *ctx, tern_error *err)                                              \
    {                                                                                                        \
        return saved;                                                                                        \
    }                                                                                                        \
    static int load_##kind(const tern_object *state, void *ctx, tern_error *err)                             \
    {                                                                                                        \
        return tern_##kind##_state_dict_load(ctx, state, err);                                               \
    }
DEFINE(optim, tern_optim_state_dict(ctx, 0, err))
DEFINE(schedule, tern_schedule_state_dict(ctx, err))
DEFINE(scaler, tern_scaler_state_dict(ctx, err))
DEFINE(amp, tern_amp_state_dict(ctx, err))
DEFINE(loader, tern_loader_state_dict(ctx, err))

int tern_snapshot_add_optim(tern_snapshot *snapshot, const char *name, tern_optim *optim, tern_error *err)
{
    return snapshot_add(snapshot, __func__, name, save_optim, load_optim, optim, err);
}

int tern_snapshot_add_schedule(tern_snapshot *snapshot, const char *name, tern_schedule *schedule,
                               tern_error *err)
{
    return snapshot_add(snapshot, __func__, name, save_schedule, load_schedule, schedule, err);
}

int tern_snapshot_add_scaler(tern_snapshot *snapshot, const char *name, tern_scaler *scaler, tern_error *err)
{
    return snapshot_add(snapshot, __func__, name, save_scaler, load_scaler, scaler, err);
}

int tern_snapshot_add_amp(tern_snapshot *snapshot, const char *name, tern_amp *amp, tern_error *err)
{
    return snapshot_add(snapshot, __func__, name, save_amp, load_amp, amp, err);
}

int tern_snapshot_add_loader(tern_snapshot *snapshot, const char *name, tern_loader *loader, tern_error *err)
{
    return snapshot_add(snapshot, __func__, name, save_loader, load_loader, loader, err);
}

int tern_snapshot_add_int(tern_snapshot *snapshot, const char *name, int64_t *value, tern_error *err)
{
    return snapshot_add(snapshot, __func__, name, save_int, load_int, value, err);
}

int tern_snapshot_add(tern_snapshot *snapshot, const char *name, tern_snapshot_save_fn save,
                      tern_snapshot_load_fn load, void *ctx, tern_error *err)
{
    tern__snapshot_item item = {.name = (char *)name, .save = save, .load = load, .ctx = ctx};
    if (tern__is_set(err)) return err->code;
    if (!save || !load) return tern__error_set(err, __func__, TERN_E_INVALID, "`save` or `load` is NULL");
    return tern__snapshot_add(snapshot, __func__, &item, err);
}

/* ---- state of which every rank has its own ---- */

static void pack_rng(const void *ctx, void *out)
{
    tern_rng_state_get(ctx, out);
}

static tern_object *show_rng(const void *packed, tern_error *err)
{
    int64_t bytes = TERN_RNG_STATE_BYTES;
    tern_tensor *tensor = tern__tensor_new(TERN_U8, 1, &bytes, err);
    if (!tensor) return NULL;
    memcpy(tensor->view.data, packed, TERN_RNG_STATE_BYTES);
    tern_object *object = tern_object_tensor(tensor, err);
    tern_tensor_free(tensor);
    return object;
}

static int load_rng(const tern_object *state, void *ctx, tern_error *err)
{
    return tern_rng_state_dict_load(ctx, state, err);
}

static void pack_scope(const void *ctx, void *out)
{
    const tern_scope *scope = ctx;
    uint64_t place[2] = {scope->seed, tern__scope_next_step(scope)};
    memcpy(out, place, sizeof(place));
}

static tern_object *show_scope(const void *packed, tern_error *err)
{
    int64_t place[2];
    memcpy(place, packed, sizeof(place));
    tern_object *state = tern_object_dict(err);
    tern_object_set(state, "seed", tern_object_int(place[0], err), err);
    tern_object_set(state, "step", tern_object_int(place[1], err), err);
    return state;
}

static int load_scope(const tern_object *state, void *ctx, tern_error *err)
{
    return tern_scope_state_dict_load(ctx, state, err);
}

static const tern__own_state own_rng = {.bytes = TERN_RNG_STATE_BYTES, .pack = pack_rng, .show = show_rng};
static const tern__own_state own_scope = {
    .bytes = 2 * sizeof(uint64_t), .pack = pack_scope, .show = show_scope, .spreads = true};

static int add_own(tern_snapshot *snapshot, const char *func, const char *name, const tern__own_state *own,
                   tern_snapshot_load_fn load, void *ctx, tern_error *err)
{
    tern__snapshot_item item = {.name = (char *)name, .own = own, .load = load, .ctx = ctx};
    if (tern__is_set(err)) return err->code;
    if (!ctx)
        return tern__error_set(err, func, TERN_E_INVALID, "the object for \"%s\" is NULL", name ? name : "");
    return tern__snapshot_add(snapshot, func, &item, err);
}

int tern_snapshot_add_rng(tern_snapshot *snapshot, const char *name, tern_rng *rng, tern_error *err)
{
    return add_own(snapshot, __func__, name, &own_rng, load_rng, rng, err);
}

static void add_scope_device(const void *ctx, tern__choosers *list)
{
    tern__choosers_add(list, ((const tern_scope *)ctx)->device);
}

int tern_snapshot_add_scope(tern_snapshot *snapshot, const char *name, tern_scope *scope, tern_error *err)
{
    int status = add_own(snapshot, __func__, name, &own_scope, load_scope, scope, err);
    if (!status) snapshot->items[snapshot->count - 1].add_devices = add_scope_device;
    return status;
}
