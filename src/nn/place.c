/* place.c - which device a part of a model is on. */
#include "nn/nn.h"

static void place(tern_module *module, tern_device *device)
{
    for (tern__member *member = module->tree->members; member; member = member->next)
        member->tensor.device = device;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        place(child->module, device);
}

int tern_module_to(tern_module *module, tern_device *device, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!module || !module->tree || !device)
        return tern__error_set(err, __func__, TERN_E_INVALID, "the module or the device is NULL");
    if (tern__module_root(module)->tree->seal)
        return tern__error_set(
            err, __func__, TERN_E_STATE,
            "%s already belongs to a ddp or an optimizer: place the parts of a model first", module->kind);
    place(module, device);
    return TERN_OK;
}
