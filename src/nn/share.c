/* share.c - one parameter under several names of a tree, as PyTorch's `decoder.weight = encoder.weight`. The
 * layer keeps its tensor, which becomes a second handle on the same memory, leaf and kernels' copies. So
 * layers need not know of sharing, and a walk over the tree finds one leaf. */
#include "nn/nn.h"

#include <stddef.h>
#include <string.h>

static tern__member *owner_of(const tern__leaf *leaf)
{
    return (tern__member *)((char *)leaf - offsetof(tern__member, leaf));
}

static const tern__member *find_in(const tern__module_tree *tree, const tern__leaf *leaf)
{
    for (const tern__member *member = tree->members; member; member = member->next)
        if (member->tensor.leaf == leaf) return member;
    for (const tern__module_tree *child = tree->children; child; child = child->next) {
        const tern__member *found = find_in(child, leaf);
        if (found) return found;
    }
    return NULL;
}

const tern__member *tern__leaf_member(const tern_module *module, const tern__leaf *leaf)
{
    return find_in(module->tree, leaf);
}

bool tern__leaf_is_under(const tern__leaf *leaf, const tern_module *module)
{
    const tern_module *inner = leaf->module;
    while (inner && inner != module) inner = inner->tree->parent;
    return inner || (leaf->shared && tern__leaf_member(module, leaf));
}

void tern__leaf_require(tern__leaf *leaf, bool required)
{
    for (tern__member *name = owner_of(leaf); name; name = name->names) name->tensor.requires_grad = required;
}

/* ---- a second name ---- */

static int share_check(tern_module *module, const char *name, const tern_tensor *parameter, tern_error *err)
{
    const char *func = "tern_parameter_share";
    if (!module || !module->tree || !name || !parameter || !parameter->leaf)
        return tern__error_set(err, func, TERN_E_INVALID, "\"%s\": expected a module and a parameter",
                               name ? name : "(NULL)");
    if (tern__module_root(parameter->leaf->module) != tern__module_root(module))
        return tern__error_set(
            err, func, TERN_E_INVALID,
            "\"%s\" of %s would share a parameter of another tree: add both modules to the model first", name,
            module->kind);
    return tern__tree_open(module, func, name, err);
}

static tern__member *find_member(const tern_module *module, const char *name)
{
    tern__member *member = module->tree->members;
    while (member && strcmp(member->name, name) != 0) member = member->next;
    return member;
}

/* Checks the member that the module has under this name so far. */
static int check_member(const tern_module *module, const tern__member *member, const tern__view *view,
                        tern_error *err)
{
    const char *func = "tern_parameter_share";
    char have[TERN__SHAPE_TEXT], want[TERN__SHAPE_TEXT];
    if (member->is_buffer)
        return tern__error_set(err, func, TERN_E_INVALID, "\"%s\" of %s is a buffer", member->name,
                               module->kind);
    if (member->tensor.leaf->shared)
        return tern__error_set(err, func, TERN_E_STATE, "\"%s\" of %s is a shared parameter already",
                               member->name, module->kind);
    if (tern__view_same_shape(&member->tensor.view, view) && member->tensor.view.dtype == view->dtype)
        return TERN_OK;
    return tern__error_set(err, func, TERN_E_SHAPE, "\"%s\" of %s is %s of %s, the parameter is %s of %s",
                           member->name, module->kind, tern__shape_text(&member->tensor.view, have),
                           tern_dtype_name(member->tensor.view.dtype), tern__shape_text(view, want),
                           tern_dtype_name(view->dtype));
}

/* Makes the member's tensor a second handle on the leaf's parameter. */
static void link_to(tern__member *member, tern__leaf *leaf)
{
    tern__member *owner = owner_of(leaf);
    tern__memory_free(member->memory);
    member->memory = NULL;
    member->tensor.view = owner->tensor.view;
    member->tensor.leaf = leaf;
    member->tensor.requires_grad = owner->tensor.requires_grad;
    member->names = owner->names;
    owner->names = member;
    leaf->shared = true;
}

tern_tensor *tern_parameter_share(tern_module *module, const char *name, tern_tensor *parameter,
                                  tern_error *err)
{
    if (tern__is_set(err) || share_check(module, name, parameter, err)) return NULL;
    const tern__view *view = &parameter->view;
    tern__member *member = find_member(module, name);
    if (member && member->tensor.leaf == parameter->leaf) return parameter->leaf->parameter;
    if (member && check_member(module, member, view, err)) return NULL;
    if (!member && !tern_parameter_add(module, name, view->dtype, view->ndim, view->shape, err)) return NULL;
    link_to(member ? member : module->tree->last_member, parameter->leaf);
    return parameter->leaf->parameter;
}
