/* precision.c - the dtype of a tree's parameters, and amp's casts around calls of the root. */
#include "nn/batch_norm.h"
#include "tensor/host.h"

/* ---- the call ---- */

void tern__precision_enter(const tern_module *module, tern_scope *scope)
{
    const tern__precision *p = &module->tree->precision;
    if (p->policy && !scope->autocast.policy) tern__policy_set(scope, p->policy);
}

static tern_tensor *precision_cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype)
{
    bool changes = x && dtype != TERN_DTYPE_NONE && tern__dtype_is_float(x->view.dtype);
    return changes ? tern_cast(scope, x, dtype) : x;
}

tern_tensor *tern__module_call(tern_module *module, tern_scope *scope, tern_tensor *x,
                               tern_forward_fn forward)
{
    const tern__precision *p = &module->tree->precision;
    if (!forward) {
        tern__scope_fail(scope, "tern_forward", TERN_E_INVALID,
                         "%s only holds other modules: it has no forward", module->kind);
        return NULL;
    }
    tern__precision_enter(module, scope);
    if (!p->casts) return forward(module, scope, x);
    tern_tensor *y = forward(module, scope, precision_cast(scope, x, p->input));
    return scope->error.code ? NULL : precision_cast(scope, y, p->output);
}

/* Casts each tensor once, so that inputs that are one tensor stay one. */
static void precision_cast_inputs(tern_scope *scope, int count, tern_tensor **x, tern_dtype dtype)
{
    tern_tensor *given[TERN__CALL_INPUTS];
    for (int i = 0; i < count; i++) {
        int first = 0;
        given[i] = x[i];
        while (given[first] != given[i]) first++;
        x[i] = first < i ? x[first] : precision_cast(scope, x[i], dtype);
    }
}

tern_tensor *tern__module_call_inputs(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                      tern_tensor **x, const void *opts)
{
    const tern__precision *p = &module->tree->precision;
    tern__precision_enter(module, scope);
    if (!p->casts) return kind->forward(module, scope, x, opts);
    precision_cast_inputs(scope, kind->count, x, p->input);
    if (scope->error.code) return NULL;
    tern_tensor *y = kind->forward(module, scope, x, opts);
    return scope->error.code ? NULL : precision_cast(scope, y, p->output);
}

/* ---- parameters ---- */

/* Moves a member's values to new memory in another dtype, under all its names. */
static int cast_member(tern__member *member, tern_dtype dtype, tern_error *err)
{
    tern__view from = member->tensor.view, to = from;
    if (!tern__dtype_is_float(from.dtype) || from.dtype == dtype) return TERN_OK;
    tern_device *home = tern__memory_device(member->memory);
    to.dtype = dtype;
    to.data = tern__memory_new(home, tern__view_bytes(&to), "tern_module_cast", err);
    if (!to.data) return TERN_E_MEMORY;
    int status = tern__host_convert(&to, &from, err);
    if (status)
        tern__memory_free(to.data);
    else
        tern__member_place(member, &to);
    return status;
}

/* Returns a member's new dtype. Running statistics add up small steps, which 16 bits would lose. */
static tern_dtype precision_dtype_of(const tern__member *member, bool is_batch_norm, tern_dtype dtype)
{
    return is_batch_norm && member->is_buffer && tern__dtype_is_half(dtype) ? TERN_F32 : dtype;
}

int tern__module_cast(tern_module *module, tern_dtype dtype, bool keep_batch_norm, tern_error *err)
{
    int status = TERN_OK;
    bool is_batch_norm = tern__is_batch_norm(module);
    bool keeps = is_batch_norm && keep_batch_norm;
    for (tern__member *member = module->tree->members; member && !keeps && !status; member = member->next)
        if (tern__member_owns(member))
            status = cast_member(member, precision_dtype_of(member, is_batch_norm, dtype), err);
    for (tern__module_tree *child = module->tree->children; child && !status; child = child->next)
        status = tern__module_cast(child->module, dtype, keep_batch_norm, err);
    return status;
}

int tern_module_cast(tern_module *module, tern_dtype dtype, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!module || !module->tree || (unsigned)dtype >= TERN_DTYPE_COUNT || !tern__dtype_is_float(dtype))
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "the module is NULL, or the dtype is not one of floating point");
    const tern__module_tree *root = tern__module_root(module)->tree;
    if (root->seal || root->precision.set)
        return tern__error_set(err, __func__, TERN_E_STATE,
                               "%s has had amp, a backward, ddp or optimizer already: cast a model first",
                               module->kind);
    return tern__module_cast(module, dtype, false, err);
}
