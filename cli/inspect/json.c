/* json.c - `tern inspect --json`: prints a file as one JSON object. */
#include "inspect/inspect.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings with zero bytes, at which cJSON's strings end ---- */

static bool has_zero(const char *text, size_t bytes)
{
    return text && strlen(text) != bytes;
}

/* Writes a string, in which cJSON escapes what is between the zero bytes. False: out of memory. */
static bool write_string(FILE *out, const char *text, size_t bytes)
{
    char *quoted = NULL;
    for (size_t at = 0; at <= bytes; at += strlen(text + at) + 1) {
        cJSON part = {.type = cJSON_String, .valuestring = (char *)text + at};
        cJSON_free(quoted);
        quoted = cJSON_PrintUnformatted(&part);
        if (!quoted) return false;
        fprintf(out, "%s%.*s", at ? "\\u0000" : "\"", (int)strlen(quoted) - 2, quoted + 1);
    }
    cJSON_free(quoted);
    return fputc('"', out) != EOF;
}

/* Ends and frees a text that was written to memory. NULL: it is not whole. */
static cJSON *json_of_text(FILE *out, char **text, bool is_whole)
{
    if (out && fclose(out)) is_whole = false;
    cJSON *raw = out && is_whole ? cJSON_CreateRaw(*text) : NULL;
    free(*text);
    return raw;
}

static cJSON *json_of_string(const char *text, size_t bytes)
{
    char *raw = NULL;
    size_t size = 0;
    if (!has_zero(text, bytes)) return cJSON_CreateString(text);
    FILE *out = open_memstream(&raw, &size);
    return json_of_text(out, &raw, out && write_string(out, text, bytes));
}

/* ---- values other than tensors ---- */

/* Creates an integer from text: cJSON's numbers are doubles, which do not hold every int64_t. */
static cJSON *json_of_int(int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRId64, value);
    return cJSON_CreateRaw(text);
}

/* Writes 17 digits, which are exact; cJSON would write 15. JSON has no NaN and no infinities: they become
 * null. */
static cJSON *json_of_float(double value)
{
    char text[40];
    if (!isfinite(value)) return cJSON_CreateNull();
    snprintf(text, sizeof(text), "%.17g", value);
    return cJSON_CreateRaw(text);
}

static cJSON *json_of(const tern_object *value);

static cJSON *json_of_items(const tern_object *value)
{
    cJSON *array = cJSON_CreateArray();
    for (int64_t i = 0; i < tern_object_count(value); i++)
        cJSON_AddItemToArray(array, json_of(tern_object_at(value, i)));
    return array;
}

/* JSON's keys are strings: 3 becomes "3". */
static void add_pair(cJSON *object, const tern_object *key, const tern_object *value)
{
    const char *name = tern_object_to_string(key);
    char *text = name ? NULL : tern__value_text(key);
    if (name || text) cJSON_AddItemToObject(object, name ? name : text, json_of(value));
    free(text);
}

static bool write_pair(FILE *out, const tern_object *key, const tern_object *value)
{
    const char *name = tern_object_to_string(key);
    char *other = name ? NULL : tern__value_text(key);
    cJSON *json = json_of(value);
    char *text = cJSON_PrintUnformatted(json);
    bool is_whole =
        text && (name || other) &&
        write_string(out, name ? name : other, name ? (size_t)tern_object_count(key) : strlen(other));
    if (is_whole) fprintf(out, ":%s", text);
    cJSON_free(text);
    cJSON_Delete(json);
    free(other);
    return is_whole;
}

/* cJSON has no raw keys, so a dict with a zero byte in a key is one raw text. */
static cJSON *json_of_dict(const tern_object *value)
{
    char *text = NULL;
    size_t size = 0;
    int64_t count = tern_object_count(value);
    bool is_raw = false;
    for (int64_t i = 0; i < count; i++) {
        const tern_object *key = tern_object_key(value, i);
        is_raw |= has_zero(tern_object_to_string(key), (size_t)tern_object_count(key));
    }
    if (!is_raw) {
        cJSON *object = cJSON_CreateObject();
        for (int64_t i = 0; i < count; i++)
            add_pair(object, tern_object_key(value, i), tern_object_at(value, i));
        return object;
    }
    FILE *out = open_memstream(&text, &size);
    bool is_whole = out != NULL;
    for (int64_t i = 0; is_whole && i < count; i++) {
        fputc(i ? ',' : '{', out);
        is_whole = write_pair(out, tern_object_key(value, i), tern_object_at(value, i));
    }
    if (is_whole) fputc('}', out);
    return json_of_text(out, &text, is_whole);
}

static cJSON *json_of_record(const tern_object *value)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "class", tern_object_record_name(value));
    cJSON_AddItemToObject(object, "args", json_of(tern_object_record_args(value)));
    cJSON_AddItemToObject(object, "state", json_of(tern_object_record_state(value)));
    return object;
}

static cJSON *json_of_tensor(const tern__tensor_info *info)
{
    char text[TERN__SHAPE_TEXT + 32];
    snprintf(text, sizeof(text), "tensor %s %s", info->dtype, info->shape);
    return cJSON_CreateString(text);
}

static cJSON *json_of_number(const tern_object *value)
{
    int64_t i;
    double f = NAN;
    bool b;
    if (tern_object_to_bool(value, &b, NULL) == TERN_OK) return cJSON_CreateBool(b);
    if (tern_object_to_int(value, &i, NULL) == TERN_OK) return json_of_int(i);
    tern_object_to_float(value, &f, NULL);
    return json_of_float(f);
}

static cJSON *json_of(const tern_object *value)
{
    char text[64];
    tern__tensor_info info;
    if (tern__tensor_info_get(&info, value)) return json_of_tensor(&info);
    switch (tern_object_kind_get(value)) {
    case TERN_OBJECT_BOOL:
    case TERN_OBJECT_INT:
    case TERN_OBJECT_FLOAT: return json_of_number(value);
    case TERN_OBJECT_STRING:
        return json_of_string(tern_object_to_string(value), (size_t)tern_object_count(value));
    case TERN_OBJECT_BYTES:
        snprintf(text, sizeof(text), "%lld bytes", (long long)tern_object_count(value));
        return cJSON_CreateString(text);
    case TERN_OBJECT_LIST:
    case TERN_OBJECT_TUPLE: return json_of_items(value);
    case TERN_OBJECT_DICT: return json_of_dict(value);
    case TERN_OBJECT_RECORD: return json_of_record(value);
    default: return cJSON_CreateNull();
    }
}

/* ---- tensors ---- */

static void add_values(cJSON *to, int64_t nan, int64_t inf, uint64_t checksum)
{
    char text[32];
    snprintf(text, sizeof(text), "%016" PRIx64, checksum);
    cJSON_AddItemToObject(to, "nan", json_of_int(nan));
    cJSON_AddItemToObject(to, "inf", json_of_int(inf));
    cJSON_AddStringToObject(to, "checksum", text);
}

static cJSON *json_of_shape(const tern__tensor_info *info)
{
    if (info->dimensions) return json_of_items(info->dimensions);
    cJSON *shape = cJSON_CreateArray();
    const tern__view *view = &info->tensor->view;
    for (int d = 0; d < view->ndim; d++) cJSON_AddItemToArray(shape, json_of_int(view->shape[d]));
    return shape;
}

static cJSON *json_of_item(const tern__content_item *item, const tern__values *v)
{
    tern__tensor_info info;
    cJSON *object = cJSON_CreateObject();
    if (!tern__tensor_info_get(&info, item->value)) return object;
    cJSON_AddItemToObject(object, "name", json_of_string(item->name, item->name_bytes));
    cJSON_AddItemToObject(object, "shape", json_of_shape(&info));
    cJSON_AddStringToObject(object, "dtype", info.dtype);
    cJSON_AddItemToObject(object, "min", json_of_float(v->min));
    cJSON_AddItemToObject(object, "mean", json_of_float(v->mean));
    cJSON_AddItemToObject(object, "max", json_of_float(v->max));
    cJSON_AddItemToObject(object, "std", json_of_float(v->std));
    add_values(object, v->nan, v->inf, v->checksum);
    return object;
}

static cJSON *json_of_totals(const tern__totals *sum)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToObject(object, "tensors", json_of_int(sum->tensors));
    cJSON_AddItemToObject(object, "values", json_of_int(sum->values));
    cJSON_AddItemToObject(object, "bytes", json_of_int(sum->bytes));
    add_values(object, sum->nan, sum->inf, sum->checksum);
    return object;
}

static void json_add_tensors(cJSON *root, const tern__content *content, tern_error *err)
{
    tern__values values;
    tern__totals sum = {0};
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (int64_t i = 0; i < content->count; i++) {
        const tern__content_item *item = &content->items[i];
        if (!tern__item_is_tensor(item)) continue;
        if (tern__inspect_measure(&values, item, &sum, err)) return;
        cJSON_AddItemToArray(tensors, json_of_item(item, &values));
    }
    cJSON_AddItemToObject(root, "totals", json_of_totals(&sum));
}

int tern__inspect_json(const tern__inspected *file, tern_error *err)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "file", file->path);
    cJSON_AddStringToObject(root, "format", file->format);
    cJSON_AddItemToObject(root, "bytes", json_of_int(file->bytes));
    cJSON_AddItemToObject(root, "object", json_of(file->object));
    json_add_tensors(root, &file->content, err);
    char *text = err->code ? NULL : cJSON_PrintUnformatted(root);
    if (text)
        puts(text);
    else
        tern__error_set(err, "tern inspect", TERN_E_MEMORY, "out of memory");
    cJSON_free(text);
    cJSON_Delete(root);
    return err->code;
}
