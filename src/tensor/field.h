/* field.h - reads the values of a dict that came from outside, such as a file; errors name the key. */
#ifndef TERN_SRC_TENSOR_FIELD_H
#define TERN_SRC_TENSOR_FIELD_H

#include "base/base.h"

#include <tern/object.h>

/* Each returns TERN_OK, or a status with *err set in the name of `func`: E_INVALID if `dict` is no dict or
 * has no such key, E_DTYPE if the value is of another kind, E_RANGE if it is outside [low, high]. A tensor of
 * one element counts as its value. */
int tern__field_int(const char *func, const tern_object *dict, const char *key, int64_t low, int64_t high,
                    int64_t *out, tern_error *err);
/* Errors call the value path["key"], or "key" if `path` is NULL. [-INFINITY, INFINITY] admits NaN, too. */
int tern__field_real(const char *func, const tern_object *dict, const char *path, const char *key, double low,
                     double high, double *out, tern_error *err);
int tern__field_bool(const char *func, const tern_object *dict, const char *key, bool *out, tern_error *err);

/* Reads an int, a float, a bool, or a tensor of one element; returns false for anything else. */
bool tern__object_number(const tern_object *object, double *out);

#endif
