/* grad.c - which parameters want gradients, and dropping gradients. Both walk the tree and not the state's
 * list: so nothing is allocated and nothing can fail. */
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

/* Drops the gradient at the scope's end. The tensor may be on none of the scope's lists any more, if a module
 * that has returned made it. */
static void drop_grad(void *tensor)
{
    tern_tensor *x = tensor;
    tern__storage_drop(x->grad_storage);
    x->grad_storage = NULL;
}

/* Lets an input of the step want a gradient. It must be a tensor of the scope that no recorded op has made.
 */
static int require_input(tern_tensor *x, bool required, const char *func, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    if (!x->scope)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "tensor %s is no parameter, nor of a scope: tern_detach makes one that is",
                               tern__shape_text(&x->view, shape));
    if (x->node)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "tensor %s is the result of %s, which sends its gradient on: tern_detach it",
                               tern__shape_text(&x->view, shape), x->node->op);
    if (!tern__dtype_is_float(x->view.dtype))
        return tern__error_set(err, func, TERN_E_DTYPE, "tensor %s is of %s, which has no gradients",
                               tern__shape_text(&x->view, shape), tern_dtype_name(x->view.dtype));
    x->requires_grad = required;
    x->inner_of = x->scope->checkpoint.traced;
    if (!required || !tern__scope_borrow(x->scope, drop_grad, x)) return TERN_OK;
    return tern__error_set(err, func, x->scope->error.code, "%s", x->scope->error.text);
}

int tern_requires_grad_set(tern_tensor *tensor, bool required, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (tern__tensor_check(tensor, __func__, err)) return err ? err->code : TERN_E_INVALID;
    if (!tensor->leaf) return require_input(tensor, required, __func__, err);
    tern__leaf_require(tensor->leaf, required);
    return TERN_OK;
}

bool tern_requires_grad_get(const tern_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}
