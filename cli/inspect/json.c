/* json.c - `tern inspect --json`: prints a file as one JSON object. It is written as text, since names and
 * values may contain zero bytes, which the strings of C libraries for JSON do not. */
#include "inspect/inspect.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values other than tensors ---- */

static void print_string(FILE *out, const char *text, size_t bytes)
{
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    fputc('"', out);
    for (size_t i = 0; i < bytes; i++) {
        const char *found = text[i] ? strchr(special, text[i]) : NULL;
        if (found)
            fprintf(out, "\\%c", letter[found - special]);
        else if ((uint8_t)text[i] < 0x20)
            fprintf(out, "\\u%04x", text[i]);
        else
            fputc(text[i], out);
    }
    fputc('"', out);
}

static void print_text(FILE *out, const char *text)
{
    print_string(out, text, strlen(text));
}

/* Writes 17 digits, which are exact. JSON has no NaN and no infinities: they become null. */
static void print_number(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, "%.17g", value);
    else
        fputs("null", out);
}

static void print_value(FILE *out, const tern_object *value);

static void print_items(FILE *out, const tern_object *value)
{
    fputc('[', out);
    for (int64_t i = 0; i < tern_object_count(value); i++) {
        if (i) fputc(',', out);
        print_value(out, tern_object_at(value, i));
    }
    fputc(']', out);
}

/* JSON's keys are strings: 3 becomes "3". */
static void print_key(FILE *out, const tern_object *key)
{
    const char *name = tern_object_to_string(key);
    char *text = name ? NULL : tern__value_text(key);
    print_string(out,
                 name   ? name
                 : text ? text
                        : "",
                 name   ? (size_t)tern_object_count(key)
                 : text ? strlen(text)
                        : 0);
    free(text);
}

static void print_dict(FILE *out, const tern_object *value)
{
    fputc('{', out);
    for (int64_t i = 0; i < tern_object_count(value); i++) {
        if (i) fputc(',', out);
        print_key(out, tern_object_key(value, i));
        fputc(':', out);
        print_value(out, tern_object_at(value, i));
    }
    fputc('}', out);
}

static void print_record(FILE *out, const tern_object *value)
{
    fputs("{\"class\":", out);
    print_text(out, tern_object_record_name(value));
    fputs(",\"args\":", out);
    print_value(out, tern_object_record_args(value));
    fputs(",\"state\":", out);
    print_value(out, tern_object_record_state(value));
    fputc('}', out);
}

static void print_scalar(FILE *out, const tern_object *value)
{
    int64_t i;
    double f = NAN;
    bool b;
    if (tern_object_to_bool(value, &b, NULL) == TERN_OK)
        fputs(b ? "true" : "false", out);
    else if (tern_object_to_int(value, &i, NULL) == TERN_OK)
        fprintf(out, "%" PRId64, i);
    else if (tern_object_to_float(value, &f, NULL) == TERN_OK)
        print_number(out, f);
}

static void print_value(FILE *out, const tern_object *value)
{
    tern__tensor_info info;
    if (tern__tensor_info_get(&info, value)) {
        fprintf(out, "\"tensor %s %s\"", info.dtype, info.shape);
        return;
    }
    switch (tern_object_kind_get(value)) {
    case TERN_OBJECT_BOOL:
    case TERN_OBJECT_INT:
    case TERN_OBJECT_FLOAT: print_scalar(out, value); return;
    case TERN_OBJECT_STRING:
        print_string(out, tern_object_to_string(value), (size_t)tern_object_count(value));
        return;
    case TERN_OBJECT_BYTES: fprintf(out, "\"%lld bytes\"", (long long)tern_object_count(value)); return;
    case TERN_OBJECT_LIST:
    case TERN_OBJECT_TUPLE: print_items(out, value); return;
    case TERN_OBJECT_DICT: print_dict(out, value); return;
    case TERN_OBJECT_RECORD: print_record(out, value); return;
    default: fputs("null", out);
    }
}

/* ---- tensors ---- */

static void print_shape(FILE *out, const tern__tensor_info *info)
{
    const tern__view *view = &info->tensor->view;
    if (info->dimensions) {
        print_items(out, info->dimensions);
        return;
    }
    fputc('[', out);
    for (int d = 0; d < view->ndim; d++) fprintf(out, "%s%" PRId64, d ? "," : "", view->shape[d]);
    fputc(']', out);
}

static void print_sums(FILE *out, int64_t nan, int64_t inf, uint64_t checksum)
{
    fprintf(out, ",\"nan\":%" PRId64 ",\"inf\":%" PRId64 ",\"checksum\":\"%016" PRIx64 "\"}", nan, inf,
            checksum);
}

static void print_item(FILE *out, const tern__content_item *item, const tern__values *v)
{
    static const char *const names[] = {"min", "mean", "max", "std"};
    const double numbers[] = {v->min, v->mean, v->max, v->std};
    tern__tensor_info info;
    if (!tern__tensor_info_get(&info, item->value)) return;
    fputs("{\"name\":", out);
    print_string(out, item->name, item->name_bytes);
    fputs(",\"shape\":", out);
    print_shape(out, &info);
    fprintf(out, ",\"dtype\":\"%s\"", info.dtype);
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        fprintf(out, ",\"%s\":", names[i]);
        print_number(out, numbers[i]);
    }
    print_sums(out, v->nan, v->inf, v->checksum);
}

static int print_tensors(FILE *out, const tern__content *content, tern_error *err)
{
    tern__values values;
    tern__totals sum = {0};
    fputs(",\"tensors\":[", out);
    for (int64_t i = 0; i < content->count; i++) {
        const tern__content_item *item = &content->items[i];
        if (!tern__item_is_tensor(item)) continue;
        if (sum.tensors) fputc(',', out);
        if (tern__inspect_measure(&values, item, &sum, err)) return err->code;
        print_item(out, item, &values);
    }
    fprintf(out, "],\"totals\":{\"tensors\":%" PRId64 ",\"values\":%" PRId64 ",\"bytes\":%" PRId64,
            sum.tensors, sum.values, sum.bytes);
    print_sums(out, sum.nan, sum.inf, sum.checksum);
    return TERN_OK;
}

static int print_file(FILE *out, const tern__inspected *file, tern_error *err)
{
    fputs("{\"file\":", out);
    print_text(out, file->path);
    fprintf(out, ",\"format\":\"%s\",\"bytes\":%" PRId64 ",\"object\":", file->format, file->bytes);
    print_value(out, file->object);
    int status = print_tensors(out, &file->content, err);
    fputs("}\n", out);
    return status;
}

/* Writes to memory first, since an error must leave standard output empty. */
int tern__inspect_json(const tern__inspected *file, tern_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    int status = out ? print_file(out, file, err) : TERN_E_MEMORY;
    bool is_whole = out && !ferror(out);
    if (out && fclose(out)) is_whole = false;
    if (!is_whole) status = tern__error_set(err, "tern inspect", TERN_E_MEMORY, "out of memory");
    if (!status) fwrite(text, 1, bytes, stdout);
    free(text);
    return status;
}
