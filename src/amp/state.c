/* state.c - reads numbers from a state dict. */
#include "amp/state.h"
#include "base/base.h"

int tern__state_number(const char *func, const tern_object *dict, const char *path, const char *key,
                       double low, double high, double *out, tern_error *err)
{
    const tern_object *item = tern_object_get(dict, key);
    if (!item) return tern__error_set(err, func, TERN_E_INVALID, "%s[\"%s\"] is missing", path, key);
    if (tern_object_to_float(item, out, NULL))
        return tern__error_set(err, func, TERN_E_DTYPE, "%s[\"%s\"]: expected a number, got a %s", path, key,
                               tern_object_kind_name(tern_object_kind_get(item)));
    if (!(*out >= low && *out <= high))
        return tern__error_set(err, func, TERN_E_RANGE, "%s[\"%s\"]: expected a number from %g to %g, got %g",
                               path, key, low, high, *out);
    return TERN_OK;
}
