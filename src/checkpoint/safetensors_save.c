/* safetensors_save.c - writes safetensors files. */
#include "checkpoint/safetensors.h"

#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/dtypes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_save";

typedef struct entry {
    const char *name;
    size_t name_bytes;
    const tern__file_dtype *dtype;
    const tern_tensor *tensor; /* of a record: its bytes */
    const tern_object *shape;  /* of a record: a tuple; NULL: the tensor's own */
} entry;

typedef struct saving {
    tern__output *out;
    entry *entries;
    int64_t count;
    const tern_object *metadata; /* NULL: none */
} saving;

/* ---- the header's text: composed twice, the first time only to count its bytes ---- */

typedef struct text {
    char *out; /* NULL: only count */
    size_t bytes;
} text;

static void safetensors_put(text *t, const char *from, size_t bytes)
{
    if (t->out) memcpy(t->out + t->bytes, from, bytes);
    t->bytes += bytes;
}

static void put_text(text *t, const char *from)
{
    safetensors_put(t, from, strlen(from));
}

static void put_string(text *t, const char *from, size_t bytes)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    put_text(t, "\"");
    for (size_t i = 0; i < bytes; i++) {
        char escape[8] = {'\\'};
        const char *known = from[i] ? strchr(plain, from[i]) : NULL;
        if (known)
            escape[1] = letter[known - plain];
        else if ((uint8_t)from[i] < 0x20)
            snprintf(escape, sizeof(escape), "\\u%04x", from[i]);
        if (escape[1])
            put_text(t, escape);
        else
            safetensors_put(t, from + i, 1);
    }
    put_text(t, "\"");
}

static void put_object(text *t, const tern_object *string)
{
    put_string(t, tern_object_to_string(string), (size_t)tern_object_count(string));
}

static void put_metadata(text *t, const tern_object *metadata)
{
    put_text(t, "\"" TERN__SAFETENSORS_METADATA "\":{");
    for (int64_t i = 0; i < tern_object_count(metadata); i++) {
        if (i) put_text(t, ",");
        put_object(t, tern_object_key(metadata, i));
        put_text(t, ":");
        put_object(t, tern_object_at(metadata, i));
    }
    put_text(t, "}");
}

static void put_entry(text *t, const entry *e, size_t begin)
{
    char number[64];
    const tern__view *view = &e->tensor->view;
    int64_t ndim = e->shape ? tern_object_count(e->shape) : view->ndim;
    put_string(t, e->name, e->name_bytes);
    put_text(t, ":{\"dtype\":\"");
    put_text(t, e->dtype->safetensors);
    put_text(t, "\",\"shape\":[");
    for (int64_t d = 0; d < ndim; d++) {
        int64_t size = e->shape ? 0 : view->shape[d];
        if (e->shape) tern_object_to_int(tern_object_at(e->shape, d), &size, NULL);
        snprintf(number, sizeof(number), "%s%lld", d ? "," : "", (long long)size);
        put_text(t, number);
    }
    snprintf(number, sizeof(number), "],\"data_offsets\":[%zu,%zu]}", begin, begin + tern__view_bytes(view));
    put_text(t, number);
}

/* Pads the header with spaces, so that the data starts at a multiple of 8. */
static void put_header(text *t, const saving *s)
{
    size_t begin = 0;
    put_text(t, "{");
    if (s->metadata) put_metadata(t, s->metadata);
    for (int64_t i = 0; i < s->count; i++) {
        if (i || s->metadata) put_text(t, ",");
        put_entry(t, &s->entries[i], begin);
        begin += tern__view_bytes(&s->entries[i].tensor->view);
    }
    put_text(t, "}");
    while (t->bytes % 8) put_text(t, " ");
}

/* ---- writing ---- */

static int write_header(const saving *s, tern_error *err)
{
    text count = {0}, header = {.bytes = 8};
    put_header(&count, s);
    if (count.bytes > TERN__SAFETENSORS_HEADER_MAX)
        return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                               "%s: the header has %zu bytes, safetensors allows %d", s->out->path,
                               count.bytes, TERN__SAFETENSORS_HEADER_MAX);
    header.out = tern__alloc(8 + count.bytes, FUNC, err);
    if (!header.out) return TERN_E_MEMORY;
    tern__bytes_put(header.out, count.bytes, 8);
    put_header(&header, s);
    int status = tern__output_write(s->out, header.out, header.bytes, err);
    tern__free(header.out);
    return status;
}

/* Writes the elements row-major. A tensor with another layout or on a device is copied first. */
static int write_tensor(const saving *s, const tern_tensor *tensor, tern_error *err)
{
    const tern__view *view = &tensor->view;
    if (tern__view_is_contiguous(view) && !tern__memory_device(view->data))
        return tern__output_write(s->out, view->data, tern__view_bytes(view), err);
    tern_tensor *copy = tern_keep(tensor, err);
    int status =
        copy ? tern__output_write(s->out, copy->view.data, tern__view_bytes(view), err) : TERN_E_MEMORY;
    tern_tensor_free(copy);
    return status;
}

/* ---- collecting the entries ---- */

/* Fails with `state["model"]: expected a tensor, got dict; ..`. */
static int unsupported(const saving *s, bool in_metadata, const tern_object *key, const char *expected,
                       const tern_object *got, tern_error *err)
{
    char quote[TERN__QUOTE_TEXT], path[TERN__QUOTE_TEXT + 32] = "";
    int64_t number = 0;
    const char *name = tern_object_to_string(key);
    tern_object_to_int(key, &number, NULL);
    if (name)
        snprintf(path, sizeof(path), "[%s]", tern__quote(name, (size_t)tern_object_count(key), quote));
    else if (key)
        snprintf(path, sizeof(path), "[%lld]", (long long)number);
    return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                           "%s: state%s%s: expected %s, got %s; safetensors holds tensors by name and, under "
                           "\"" TERN__SAFETENSORS_METADATA "\", strings; .pt holds everything",
                           s->out->path, in_metadata ? "[\"" TERN__SAFETENSORS_METADATA "\"]" : "", path,
                           expected, tern_object_kind_name(tern_object_kind_get(got)));
}

static int take_metadata(saving *s, const tern_object *key, const tern_object *metadata, tern_error *err)
{
    s->metadata = metadata;
    if (tern_object_kind_get(metadata) != TERN_OBJECT_DICT)
        return unsupported(s, false, key, "a dict", metadata, err);
    for (int64_t i = 0; i < tern_object_count(metadata); i++) {
        const tern_object *name = tern_object_key(metadata, i), *value = tern_object_at(metadata, i);
        if (!tern_object_to_string(name)) return unsupported(s, true, name, "a name", name, err);
        if (!tern_object_to_string(value)) return unsupported(s, true, name, "a string", value, err);
    }
    return TERN_OK;
}

static int take_tensor(saving *s, const tern_object *key, const tern_object *item, tern_error *err)
{
    tern__tensor_record record = {.bytes = tern_object_to_tensor(item)};
    const char *name = tern_object_to_string(key);
    char quote[TERN__QUOTE_TEXT];
    if (!name) return unsupported(s, false, key, "a name", key, err);
    if (record.bytes)
        record.dtype = tern__file_dtype_of(record.bytes->view.dtype);
    else if (!tern__tensor_record_read(&record, item))
        return unsupported(s, false, key, "a tensor", item, err);
    if (!record.dtype->safetensors)
        return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                               "%s: state[%s] has %s, a dtype that safetensors does not have; .pt holds it",
                               s->out->path, tern__quote(name, (size_t)tern_object_count(key), quote),
                               record.dtype->name);
    s->entries[s->count++] =
        (entry){name, (size_t)tern_object_count(key), record.dtype, record.bytes, record.shape};
    return tern__tensor_check(record.bytes, FUNC, err);
}

static int safetensors_compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int by_dtype = (int)(x->dtype - y->dtype);
    int by_name = memcmp(x->name, y->name, TERN__MIN(x->name_bytes, y->name_bytes));
    int by_length = x->name_bytes < y->name_bytes ? -1 : 1;
    return by_dtype ? by_dtype : by_name ? by_name : by_length;
}

static int safetensors_take_all(saving *s, const tern_object *object, tern_error *err)
{
    if (tern_object_kind_get(object) != TERN_OBJECT_DICT)
        return unsupported(s, false, NULL, "a dict", object, err);
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < tern_object_count(object); i++) {
        const tern_object *key = tern_object_key(object, i), *item = tern_object_at(object, i);
        status = tern__safetensors_is_metadata(key) ? take_metadata(s, key, item, err)
                                                    : take_tensor(s, key, item, err);
    }
    qsort(s->entries, (size_t)s->count, sizeof(*s->entries), safetensors_compare);
    return status;
}

int tern__safetensors_save(tern__output *out, const tern_object *object, tern_error *err)
{
    saving s = {.out = out};
    if (tern__is_set(err)) return err->code;
    s.entries = tern__alloc((size_t)tern_object_count(object) * sizeof(*s.entries), FUNC, err);
    if (!s.entries) return TERN_E_MEMORY;
    int status = safetensors_take_all(&s, object, err);
    if (!status) status = write_header(&s, err);
    for (int64_t i = 0; !status && i < s.count; i++) status = write_tensor(&s, s.entries[i].tensor, err);
    tern__free(s.entries);
    return status;
}
