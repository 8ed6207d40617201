/* place.c - moves a part of a model to a device. */
#include "nn/nn.h"

/* True for a buffer of one integer, such as a batch norm's count of batches. It stays on the host, which
 * counts without waiting for a device. */
static bool is_counter(const tern__member *member)
{
    const tern__view *view = &member->tensor.view;
    return member->is_buffer && view->ndim == 0 && !tern__dtype_is_float(view->dtype);
}

void tern__member_place(tern__member *member, const tern__view *view)
{
    tern__memory_free(member->memory);
    member->memory = view->data;
    member->tensor.view = *view;
    for (tern__member *name = member->names; name; name = name->names) name->tensor.view = *view;
    if (view->packs) view->packs->version++;
}

/* Moves a member into the device's memory. */
static int module_move(tern__member *member, tern_device *device, tern_error *err)
{
    size_t bytes = tern__view_bytes(&member->tensor.view);
    tern_device *home = device->backend ? device : NULL;
    if (tern__memory_device(member->memory) == home || (home && is_counter(member))) return TERN_OK;
    void *memory = tern__memory_new(device, bytes, "tern_module_to", err);
    if (!memory) return TERN_E_MEMORY;
    int status = tern__memory_copy(memory, member->memory, bytes, err);
    tern__view there = member->tensor.view;
    there.data = memory;
    tern__member_place(member, &there);
    return status;
}

static int module_place_leaves(tern_module *module, tern_device *device, tern_error *err)
{
    int status = TERN_OK;
    for (tern__member *member = module->tree->members; member && !status; member = member->next) {
        if (tern__member_owns(member)) status = module_move(member, device, err);
        member->tensor.device = device;
    }
    for (tern__module_tree *child = module->tree->children; child && !status; child = child->next)
        status = module_place_leaves(child->module, device, err);
    return status;
}

int tern_module_to(tern_module *module, tern_device *device, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!module || !module->tree || !device)
        return tern__error_set(err, __func__, TERN_E_INVALID, "the module or the device is NULL");
    if (tern__module_root(module)->tree->seal)
        return tern__error_set(
            err, __func__, TERN_E_STATE,
            "%s has had a backward, ddp or optimizer already: place the parts of a model first",
            module->kind);
    return module_place_leaves(module, device, err);
}
