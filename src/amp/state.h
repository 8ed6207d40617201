/* state.h - reads numbers from a state dict; errors name the path. */
#ifndef TERN_SRC_AMP_STATE_H
#define TERN_SRC_AMP_STATE_H

#include <tern/object.h>

/* Reads the number under `key` of the dict that errors call `path` ("state", "state["loss_scaler0"]").
 * E_INVALID: the key or the dict is missing; E_DTYPE: the item is no number; E_RANGE unless low <= number <=
 * high. */
int tern__state_number(const char *func, const tern_object *dict, const char *path, const char *key,
                       double low, double high, double *out, tern_error *err);

#endif
