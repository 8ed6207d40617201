/* state_dict.c - saves and restores the position of a scope's random numbers. */
#include "autograd/autograd.h"
#include "tensor/field.h"

#include <tern/state_dict.h>

uint64_t tern__scope_next_step(const tern_scope *scope)
{
    return scope->step + (scope->tensors || scope->tape || scope->draws);
}

tern_object *tern_scope_state_dict(const tern_scope *scope, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!scope) {
        tern__error_set(err, __func__, TERN_E_INVALID, "the scope is NULL");
        return NULL;
    }
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    tern_object *state = tern_object_dict(e);
    tern_object_set(state, "seed", tern_object_int((int64_t)scope->seed, e), e);
    tern_object_set(state, "step", tern_object_int((int64_t)tern__scope_next_step(scope), e), e);
    if (!tern__is_set(e)) return state;
    tern_object_free(state);
    return NULL;
}

int tern_scope_state_dict_load(tern_scope *scope, const tern_object *state, tern_error *err)
{
    int64_t seed, step;
    if (tern__is_set(err)) return err->code;
    if (!scope) return tern__error_set(err, __func__, TERN_E_INVALID, "the scope is NULL");
    int status = tern__field_int(__func__, state, "seed", INT64_MIN, INT64_MAX, &seed, err);
    if (!status) status = tern__field_int(__func__, state, "step", INT64_MIN, INT64_MAX, &step, err);
    if (!status) tern_scope_seed(scope, (uint64_t)seed, (uint64_t)step);
    return status;
}
