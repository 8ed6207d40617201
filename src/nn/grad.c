/* grad.c - which parameters take gradients, and forgetting those that they have. Over the tree, not the list
 * of its state: nothing to allocate, so nothing to fail. */
#include "nn/nn.h"

typedef void (*member_fn)(tern__member *member, bool value);

static void each_member(tern_module *module, member_fn fn, bool value)
{
    if (!module || !module->tree) return;
    for (tern__member *member = module->tree->members; member; member = member->next) fn(member, value);
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        each_member(child->module, fn, value);
}

static void set_fresh(tern__member *member, bool value)
{
    if (!member->is_buffer) member->tensor.leaf->fresh = value;
}

static void set_required(tern__member *member, bool value)
{
    if (!member->is_buffer) tern__leaf_require(member->tensor.leaf, value);
}

void tern_zero_grad(tern_module *module)
{
    each_member(module, set_fresh, false);
}

void tern_module_requires_grad_set(tern_module *module, bool required)
{
    each_member(module, set_required, required);
}

int tern_requires_grad_set(tern_tensor *parameter, bool required, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    if (tern__tensor_check(parameter, __func__, err)) return err ? err->code : TERN_E_INVALID;
    if (!parameter->leaf)
        return tern__error_set(err, __func__, TERN_E_INVALID, "tensor %s is no parameter of a module",
                               tern__shape_text(&parameter->view, shape));
    tern__leaf_require(parameter->leaf, required);
    return TERN_OK;
}

bool tern_requires_grad_get(const tern_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}
