/* field.c - reads and checks the values of a dict; errors name the key. */
#include "tensor/field.h"

#include "tensor/host.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>

bool tern__object_number(const tern_object *object, double *out)
{
    const tern_tensor *tensor = tern_object_to_tensor(object);
    if (!tensor) return tern_object_to_float(object, out, NULL) == TERN_OK;
    *out = tern_item(tensor);
    return tern_tensor_count(tensor) == 1;
}

/* What errors call a value: path["key"], or "key" without a path. */
typedef struct field_name {
    char text[128];
} field_name;

static field_name name_of(const char *path, const char *key)
{
    field_name n;
    snprintf(n.text, sizeof(n.text), path ? "%s[\"%s\"]" : "%s\"%s\"", path ? path : "", key);
    return n;
}

static const tern_object *field_find(const char *func, const tern_object *dict, const char *path,
                                     const char *key, tern_error *err)
{
    const tern_object *value = tern_object_get(dict, key);
    if (tern__is_set(err)) return NULL;
    if (!value && !path && tern_object_kind_get(dict) != TERN_OBJECT_DICT)
        tern__error_set(err, func, TERN_E_INVALID, "expected a dict with \"%s\", got a %s", key,
                        tern_object_kind_name(tern_object_kind_get(dict)));
    else if (!value)
        tern__error_set(err, func, TERN_E_INVALID, "%s is missing", name_of(path, key).text);
    return value;
}

static int wrong(const char *func, field_name name, const char *expected, const tern_object *value,
                 tern_error *err)
{
    return tern__error_set(err, func, TERN_E_DTYPE, "%s is a %s, expected %s", name.text,
                           tern_object_kind_name(tern_object_kind_get(value)), expected);
}

/* The status to return after find has returned NULL. */
static int missing(const tern_error *err)
{
    return err && err->code ? err->code : TERN_E_INVALID;
}

int tern__field_int(const char *func, const tern_object *dict, const char *key, int64_t low, int64_t high,
                    int64_t *out, tern_error *err)
{
    const tern_object *value = field_find(func, dict, NULL, key, err);
    int64_t got;
    tern__host host;
    if (!value) return missing(err);
    const tern_tensor *tensor = tern_object_to_tensor(value);
    bool is_int = tensor ? tern_tensor_count(tensor) == 1 && !tern__dtype_is_float(tensor->view.dtype)
                         : tern_object_to_int(value, &got, NULL) == TERN_OK;
    if (!is_int) return wrong(func, name_of(NULL, key), "an int", value, err);
    if (tensor && tern__host_open(&host, &tensor->view, err)) return missing(err);
    if (tensor) got = tern__view_get_int(&host.view, 0);
    if (tensor) tern__host_close(&host, false, NULL);
    if (got < low || got > high)
        return tern__error_set(err, func, TERN_E_RANGE, "\"%s\" is %lld, expected [%lld, %lld]", key,
                               (long long)got, (long long)low, (long long)high);
    *out = got;
    return TERN_OK;
}

int tern__field_real(const char *func, const tern_object *dict, const char *path, const char *key, double low,
                     double high, double *out, tern_error *err)
{
    const tern_object *value = field_find(func, dict, path, key, err);
    double got;
    if (!value) return missing(err);
    if (!tern__object_number(value, &got)) return wrong(func, name_of(path, key), "a number", value, err);
    bool bounded = low > -INFINITY || high < INFINITY;
    if (bounded && !(got >= low && got <= high))
        return tern__error_set(err, func, TERN_E_RANGE, "%s is %g, expected [%g, %g]",
                               name_of(path, key).text, got, low, high);
    *out = got;
    return TERN_OK;
}

int tern__field_bool(const char *func, const tern_object *dict, const char *key, bool *out, tern_error *err)
{
    const tern_object *value = field_find(func, dict, NULL, key, err);
    if (!value) return missing(err);
    if (tern_object_to_bool(value, out, NULL) == TERN_OK) return TERN_OK;
    return wrong(func, name_of(NULL, key), "a bool", value, err);
}
