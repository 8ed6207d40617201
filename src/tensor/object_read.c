/* object_read.c - reads and prints nested objects. */
#include "tensor/object_nodes.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {"none", "bool",  "int",  "float",  "string", "bytes",
                                         "list", "tuple", "dict", "tensor", "record"};

tern_object_kind tern_object_kind_get(const tern_object *object)
{
    return object ? (tern_object_kind)object->kind : TERN_OBJECT_NONE;
}

const char *tern_object_kind_name(tern_object_kind kind)
{
    return (size_t)kind < TERN__COUNT(kind_names) ? kind_names[kind] : "?";
}

static bool is(const tern_object *object, tern_object_kind kind)
{
    return object && object->kind == kind;
}

static bool is_list(const tern_object *object)
{
    return is(object, TERN_OBJECT_LIST) || is(object, TERN_OBJECT_TUPLE);
}

static bool is_text(const tern_object *object)
{
    return is(object, TERN_OBJECT_STRING) || is(object, TERN_OBJECT_BYTES);
}

/* ---- containers ---- */

int64_t tern_object_count(const tern_object *object)
{
    if (is_list(object)) return ((const list_node *)object)->count;
    if (is(object, TERN_OBJECT_DICT)) return ((const dict_node *)object)->count;
    return is_text(object) ? ((const text_node *)object)->bytes : 0;
}

int64_t tern__object_child_count(const tern_object *object)
{
    if (is(object, TERN_OBJECT_RECORD)) return 2;
    return is_text(object) ? 0 : tern_object_count(object);
}

tern_object *tern__object_child(const tern_object *object, int64_t index)
{
    if (index < 0 || index >= tern__object_child_count(object)) return NULL;
    if (is_list(object)) return ((const list_node *)object)->items[index];
    if (is(object, TERN_OBJECT_DICT)) return ((const dict_node *)object)->pairs[index].item;
    return index ? ((const record_node *)object)->state : ((const record_node *)object)->args;
}

void tern__object_child_set(tern_object *object, int64_t index, tern_object *child)
{
    record_node *record = (record_node *)object;
    tern_object **slot = is_list(object)                ? &((list_node *)object)->items[index]
                         : is(object, TERN_OBJECT_DICT) ? &((dict_node *)object)->pairs[index].item
                         : index                        ? &record->state
                                                        : &record->args;
    tern_object *old = *slot;
    *slot = tern__object_hold(child);
    tern__object_drop(old);
}

const tern_object *tern_object_at(const tern_object *object, int64_t index)
{
    return is(object, TERN_OBJECT_RECORD) ? NULL : tern__object_child(object, index);
}

const tern_object *tern_object_key(const tern_object *dict, int64_t index)
{
    if (!is(dict, TERN_OBJECT_DICT) || index < 0 || index >= tern_object_count(dict)) return NULL;
    return ((const dict_node *)dict)->pairs[index].key;
}

/* ---- values ---- */

static int object_check_kind(const tern_object *object, tern_object_kind most, tern_object_kind wanted,
                             const char *func, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!object) return tern__error_set(err, func, TERN_E_INVALID, "the object is NULL");
    if (object->kind >= TERN_OBJECT_BOOL && object->kind <= most) return TERN_OK;
    return tern__error_set(err, func, TERN_E_DTYPE, "expected %s, got %s", tern_object_kind_name(wanted),
                           tern_object_kind_name(object->kind));
}

int tern_object_to_bool(const tern_object *object, bool *out, tern_error *err)
{
    int status = object_check_kind(object, TERN_OBJECT_BOOL, TERN_OBJECT_BOOL, __func__, err);
    if (!status) *out = ((const scalar_node *)object)->value.i != 0;
    return status;
}

int tern_object_to_int(const tern_object *object, int64_t *out, tern_error *err)
{
    int status = object_check_kind(object, TERN_OBJECT_INT, TERN_OBJECT_INT, __func__, err);
    if (!status) *out = ((const scalar_node *)object)->value.i;
    return status;
}

int tern_object_to_float(const tern_object *object, double *out, tern_error *err)
{
    int status = object_check_kind(object, TERN_OBJECT_FLOAT, TERN_OBJECT_FLOAT, __func__, err);
    if (status) return status;
    const scalar_node *node = (const scalar_node *)object;
    *out = object->kind == TERN_OBJECT_FLOAT ? node->value.f : (double)node->value.i;
    return TERN_OK;
}

const char *tern_object_to_string(const tern_object *object)
{
    return is(object, TERN_OBJECT_STRING) ? ((const text_node *)object)->data : NULL;
}

const void *tern_object_to_bytes(const tern_object *object)
{
    return is(object, TERN_OBJECT_BYTES) ? ((const text_node *)object)->data : NULL;
}

tern_tensor *tern_object_to_tensor(const tern_object *object)
{
    return is(object, TERN_OBJECT_TENSOR) ? ((const tensor_node *)object)->tensor : NULL;
}

const char *tern__object_name(const tern_object *record)
{
    return ((const record_node *)record)->name;
}

const char *tern_object_record_name(const tern_object *record)
{
    return is(record, TERN_OBJECT_RECORD) ? tern__object_name(record) : NULL;
}

const tern_object *tern_object_record_args(const tern_object *record)
{
    return is(record, TERN_OBJECT_RECORD) ? ((const record_node *)record)->args : NULL;
}

const tern_object *tern_object_record_state(const tern_object *record)
{
    return is(record, TERN_OBJECT_RECORD) ? ((const record_node *)record)->state : NULL;
}

/* ---- places, for errors ---- */

/* Appends `["model"]` or `[3]`. */
static void append_level(const tern__object_place *place, char text[TERN__PLACE_TEXT])
{
    char quote[TERN__QUOTE_TEXT];
    const tern_object *key = tern_object_key(place->container, place->index);
    const char *name = tern_object_to_string(key);
    int64_t number = place->index;
    tern_object_to_int(key, &number, NULL);
    if (name)
        tern__text_append(text, TERN__PLACE_TEXT, "[%s]",
                          tern__quote(name, (size_t)tern_object_count(key), quote));
    else
        tern__text_append(text, TERN__PLACE_TEXT, "[%lld]", (long long)number);
}

const char *tern__object_place_text(const tern__object_place *place, char text[TERN__PLACE_TEXT])
{
    enum { SHOWN = 8 };
    const tern__object_place *shown[SHOWN];
    int depth = 0;
    for (const tern__object_place *at = place; at; at = at->up) depth++;
    for (int level = depth; place; place = place->up)
        if (--level < SHOWN) shown[level] = place;
    snprintf(text, TERN__PLACE_TEXT, "state");
    for (int level = 0; level < depth && level < SHOWN; level++) append_level(shown[level], text);
    return text;
}

/* ---- printing ---- */

#define DEEPEST 100

/* Prints the fewest digits, 15 to 17, that read back as the same value, and always a point or an exponent. */
static void print_float(FILE *file, double value)
{
    char text[40] = "";
    for (int digits = 15; digits <= 17 && (!*text || strtod(text, NULL) != value); digits++)
        snprintf(text, sizeof(text), "%.*g", digits, value);
    fprintf(file, "%s%s", text, isfinite(value) && !strpbrk(text, ".e") ? ".0" : "");
}

/* Prints a character of several bytes, or its escape if it changes the writing direction. Returns its length.
 */
static int print_character(FILE *file, const text_node *text, int64_t at)
{
    uint32_t code;
    char shown[16];
    int bytes = tern__utf8_next(text->data + at, (size_t)(text->bytes - at), &code);
    tern__escape(text->data + at, (size_t)bytes, shown, sizeof(shown));
    fputs(shown, file);
    return bytes;
}

/* Escapes what could move the cursor or end the quotes. */
static void object_print_text(FILE *file, const text_node *text)
{
    bool is_bytes = text->object.kind == TERN_OBJECT_BYTES;
    fputs(is_bytes ? "b'" : "'", file);
    for (int64_t i = 0; i < text->bytes; i++) {
        unsigned char c = (unsigned char)text->data[i], next = (unsigned char)text->data[i + 1];
        bool is_control = c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);
        if (c == '\'' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", file);
        else if (!is_bytes && c == 0xc2 && is_control)
            fprintf(file, "\\x%02x", (unsigned char)text->data[++i]);
        else if (is_control || (is_bytes && c >= 0x80))
            fprintf(file, "\\x%02x", c);
        else if (c >= 0x80)
            i += print_character(file, text, i) - 1;
        else
            fputc(c, file);
    }
    fputc('\'', file);
}

static void print_tensor(FILE *file, const tern_tensor *tensor)
{
    char shape[TERN__SHAPE_TEXT];
    fprintf(file, "tensor(%s %s)", tern_dtype_name(tensor->view.dtype),
            tern__shape_text(&tensor->view, shape));
}

static void print_node(FILE *file, const tern_object *object, int depth);

static void print_items(FILE *file, const tern_object *object, int depth)
{
    static const char *const around[][2] = {{"[", "]"}, {"(", ")"}, {"{", "}"}};
    const char *const *edge = around[object->kind - TERN_OBJECT_LIST];
    int64_t count = tern_object_count(object);
    fputs(edge[0], file);
    for (int64_t i = 0; i < count; i++) {
        if (i) fputs(", ", file);
        if (object->kind == TERN_OBJECT_DICT) {
            print_node(file, tern_object_key(object, i), depth);
            fputs(": ", file);
        }
        print_node(file, tern_object_at(object, i), depth);
    }
    fprintf(file, "%s%s", object->kind == TERN_OBJECT_TUPLE && count == 1 ? "," : "", edge[1]);
}

static void print_record(FILE *file, const record_node *record, int depth)
{
    fprintf(file, "<%s", record->name);
    if (record->args) print_node(file, record->args, depth);
    if (record->state) {
        fputc(' ', file);
        print_node(file, record->state, depth);
    }
    fputc('>', file);
}

static void print_node(FILE *file, const tern_object *object, int depth)
{
    const scalar_node *scalar = (const scalar_node *)object;
    if (depth > DEEPEST) {
        fputs("...", file);
        return;
    }
    switch (tern_object_kind_get(object)) {
    case TERN_OBJECT_NONE: fputs("None", file); break;
    case TERN_OBJECT_BOOL: fputs(scalar->value.i ? "True" : "False", file); break;
    case TERN_OBJECT_INT: fprintf(file, "%lld", (long long)scalar->value.i); break;
    case TERN_OBJECT_FLOAT: print_float(file, scalar->value.f); break;
    case TERN_OBJECT_STRING:
    case TERN_OBJECT_BYTES: object_print_text(file, (const text_node *)object); break;
    case TERN_OBJECT_LIST:
    case TERN_OBJECT_TUPLE:
    case TERN_OBJECT_DICT: print_items(file, object, depth + 1); break;
    case TERN_OBJECT_TENSOR: print_tensor(file, tern_object_to_tensor(object)); break;
    case TERN_OBJECT_RECORD: print_record(file, (const record_node *)object, depth + 1); break;
    }
}

void tern__object_print(FILE *file, const tern_object *object)
{
    print_node(file, object, 0);
}

void tern_object_print(const tern_object *object)
{
    print_node(stdout, object, 0);
    fputc('\n', stdout);
}
