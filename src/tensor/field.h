/* field.h - reading the values of a dict that somebody else has written: errors name the key. */
#ifndef TERN_SRC_TENSOR_FIELD_H
#define TERN_SRC_TENSOR_FIELD_H

#include "base/base.h"

#include <tern/object.h>

/* Each returns TERN_OK, or a status with *err set in the name of `func`: E_INVALID if `dict` has no such key,
 * E_DTYPE if its value is of another kind, E_RANGE if it is outside of [low, high]. A tensor of one element
 * counts as its value. */
int tern__field_int(const char *func, const tern_object *dict, const char *key, int64_t low, int64_t high,
                    int64_t *out, tern_error *err);
int tern__field_real(const char *func, const tern_object *dict, const char *key, double *out,
                     tern_error *err);
int tern__field_bool(const char *func, const tern_object *dict, const char *key, bool *out, tern_error *err);

/* The value of an int, a float, a bool, or a tensor of one element; false for anything else. */
bool tern__object_number(const tern_object *object, double *out);

#endif
