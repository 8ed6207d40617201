/* state.h - reading numbers out of a state dict; errors name the path. */
#ifndef TERN_SRC_AMP_STATE_H
#define TERN_SRC_AMP_STATE_H

#include <tern/object.h>

/* The number under `key` of the dict, called `path` ("state", "state["loss_scaler0"]"): E_INVALID: none, or
 * no dict; E_DTYPE: of another kind; E_RANGE unless low <= number <= high. */
int tern__state_number(const char *func, const tern_object *dict, const char *path, const char *key,
                       double low, double high, double *out, tern_error *err);

#endif
