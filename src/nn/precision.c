/* precision.c - what amp makes of a module tree: parameters of 16 bits, and casts around the root's call. */
#include "nn/batch_norm.h"
#include "tensor/host.h"

/* ---- the call ---- */

void tern__precision_enter(const tern_module *module, tern_scope *scope)
{
    const tern__precision *p = &module->tree->precision;
    if (p->policy && !scope->policy) tern__policy_set(scope, p->policy);
}

static tern_tensor *cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype)
{
    bool changes = x && dtype != TERN_DTYPE_COUNT && tern__dtype_is_float(x->view.dtype);
    return changes ? tern_cast(scope, x, dtype) : x;
}

tern_tensor *tern__module_call(tern_module *module, tern_scope *scope, tern_tensor *x,
                               tern_forward_fn forward)
{
    const tern__precision *p = &module->tree->precision;
    tern__precision_enter(module, scope);
    if (!p->casts) return forward(module, scope, x);
    tern_tensor *y = forward(module, scope, cast(scope, x, p->input));
    return scope->error.code ? NULL : cast(scope, y, p->output);
}

/* ---- parameters ---- */

/* In place: an element of 16 bits ends before the next one's begin. */
static int narrow(tern_tensor *tensor, tern_dtype dtype, tern_error *err)
{
    tern__host host;
    int status = tern__host_open(&host, &tensor->view, err);
    if (status) return status;
    tern__view to = tern__view_make(dtype, TERN__PLAIN, tensor->view.ndim, tensor->view.shape);
    to.data = host.view.data;
    for (int64_t i = 0; i < tern__view_count(&to); i++) tern__view_set(&to, i, tern__view_get(&host.view, i));
    tensor->view.dtype = dtype;
    return tern__host_close(&host, true, err);
}

static int cast_member(tern__member *member, tern_dtype dtype, tern_error *err)
{
    if (!tern__dtype_is_float(member->tensor.view.dtype) || member->tensor.view.dtype == dtype)
        return TERN_OK;
    int status = narrow(&member->tensor, dtype, err);
    for (tern__member *name = member->names; name; name = name->names) name->tensor.view.dtype = dtype;
    return status;
}

int tern__module_cast(tern_module *module, tern_dtype dtype, bool keep_batch_norm, tern_error *err)
{
    int status = TERN_OK;
    bool is_batch_norm = tern__is_batch_norm(module);
    for (tern__member *member = module->tree->members; member && !status; member = member->next)
        if (tern__member_owns(member) && !(is_batch_norm && (keep_batch_norm || member->is_buffer)))
            status = cast_member(member, dtype, err);
    for (tern__module_tree *child = module->tree->children; child && !status; child = child->next)
        status = tern__module_cast(child->module, dtype, keep_batch_norm, err);
    return status;
}
