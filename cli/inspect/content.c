/* content.c - lists all values of a file with their names. */
#include "inspect/content.h"
#include "cli.h"
#include "inspect/module_record.h"

#include "base/text.h"
#include "checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern inspect";

char *tern__value_text(const tern_object *value)
{
    char *text = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory) return NULL;
    tern__object_print(memory, value);
    fclose(memory);
    return text;
}

tern_object *tern__content_load(const char *path, const tern_load_opts *opts, tern_error *err)
{
    tern__input in;
    tern_load_opts own = *opts;
    if (tern__input_open(&in, path, 0, err)) return NULL;
    own.records = own.records || tern__safetensors_is(&in);
    tern__input_close(&in);
    return tern_load(path, &own, err);
}

/* Writes "(3, 4)", with an ellipsis if it is too long. */
static void write_shape(const tern_object *dimensions, char text[TERN__SHAPE_TEXT])
{
    int64_t size = 0;
    *text = '\0';
    for (int64_t d = 0; d < tern_object_count(dimensions) && strlen(text) < TERN__SHAPE_TEXT - 32; d++) {
        tern_object_to_int(tern_object_at(dimensions, d), &size, NULL);
        tern__text_append(text, TERN__SHAPE_TEXT, "%s%lld", d ? ", " : "(", (long long)size);
    }
    bool is_whole = strlen(text) < TERN__SHAPE_TEXT - 32;
    tern__text_append(text, TERN__SHAPE_TEXT, is_whole && *text ? ")" : is_whole ? "()" : ", ..)");
}

bool tern__tensor_info_get(tern__tensor_info *info, const tern_object *value)
{
    tern__tensor_record record;
    const tern_tensor *tensor = tern_object_to_tensor(value);
    if (tensor) {
        *info = (tern__tensor_info){
            tensor, true, tern_dtype_name(tensor->view.dtype), tern__view_count(&tensor->view), NULL, ""};
        tern__shape_text(&tensor->view, info->shape);
        return true;
    }
    if (!tern__tensor_record_read(&record, value)) return false;
    *info = (tern__tensor_info){record.bytes, false, record.dtype->name, record.count, record.shape, ""};
    write_shape(record.shape, info->shape);
    return true;
}

/* The name of the current position: it grows on the way down and shrinks on the way up. */
typedef struct path {
    char *text;
    size_t bytes, room;
} path;

static int append_bytes(path *p, const char *text, size_t bytes, tern_error *err)
{
    if (tern__array_reserve(&p->text, &p->room, p->bytes + bytes, 1, FUNC, err)) return TERN_E_MEMORY;
    if (bytes) memcpy(p->text + p->bytes, text, bytes);
    p->bytes += bytes;
    return TERN_OK;
}

static int append_in_brackets(path *p, const char *text, tern_error *err)
{
    int status = append_bytes(p, "[", 1, err);
    if (!status) status = append_bytes(p, text, strlen(text), err);
    return status ? status : append_bytes(p, "]", 1, err);
}

static int append_index(path *p, int64_t index, tern_error *err)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)index);
    return append_in_brackets(p, text, err);
}

static int append_name(path *p, const tern_object *name, tern_error *err)
{
    int status = p->bytes ? append_bytes(p, ".", 1, err) : TERN_OK;
    if (status) return status;
    return append_bytes(p, tern_object_to_string(name), (size_t)tern_object_count(name), err);
}

/* Appends ".weight" for a string, and "[0.5]" for any other key. */
static int append_key(path *p, const tern_object *key, tern_error *err)
{
    if (tern_object_to_string(key)) return append_name(p, key, err);
    char *text = tern__value_text(key);
    if (!text) return tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory");
    int status = append_in_brackets(p, text, err);
    free(text);
    return status;
}

static int add_item(tern__content *c, const path *p, const tern_object *value, tern_error *err)
{
    if (tern__array_reserve(&c->items, &c->room, c->count + 1, sizeof(*c->items), FUNC, err))
        return TERN_E_MEMORY;
    char *name = tern__alloc(p->bytes + 1, FUNC, err);
    if (!name) return TERN_E_MEMORY;
    if (p->bytes) memcpy(name, p->text, p->bytes);
    c->items[c->count++] = (tern__content_item){name, p->bytes, value};
    return TERN_OK;
}

static int list_value(tern__content *c, path *p, const tern_object *value, tern_error *err);

static int list_child(tern__content *c, path *p, const tern_object *parent, int64_t i, tern_error *err)
{
    size_t bytes = p->bytes;
    bool is_dict = tern_object_kind_get(parent) == TERN_OBJECT_DICT;
    int status = is_dict ? append_key(p, tern_object_key(parent, i), err) : append_index(p, i, err);
    if (!status) status = list_value(c, p, tern_object_at(parent, i), err);
    p->bytes = bytes;
    return status;
}

static int list_children(tern__content *c, path *p, const tern_object *value, tern_error *err)
{
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < tern_object_count(value); i++)
        status = list_child(c, p, value, i, err);
    return status;
}

/* Lists a module's parameters, buffers and submodules under the names of its state dict, without those that
 * are None. */
static int list_module(tern__content *c, path *p, const tern_object *state, tern_error *err)
{
    static const char *const parts[] = {"_parameters", "_buffers", "_modules"};
    int status = TERN_OK;
    for (size_t k = 0; k < TERN__COUNT(parts); k++) {
        const tern_object *part = tern_object_get(state, parts[k]);
        for (int64_t i = 0; !status && i < tern_object_count(part); i++)
            if (tern_object_kind_get(tern_object_at(part, i)) != TERN_OBJECT_NONE)
                status = list_child(c, p, part, i, err);
    }
    return status;
}

static int list_record(tern__content *c, path *p, const tern_object *value, tern_error *err)
{
    const tern_object *state = tern_object_record_state(value);
    if (tern__module_record_is(value)) return list_module(c, p, state, err);
    int status = list_value(c, p, tern_object_record_args(value), err);
    return status ? status : list_value(c, p, state, err);
}

static int list_value(tern__content *c, path *p, const tern_object *value, tern_error *err)
{
    tern_object_kind kind = tern_object_kind_get(value);
    if (!value) return TERN_OK;
    if (kind == TERN_OBJECT_RECORD && !tern__value_is_tensor(value)) return list_record(c, p, value, err);
    bool is_container = kind == TERN_OBJECT_LIST || kind == TERN_OBJECT_TUPLE || kind == TERN_OBJECT_DICT;
    return is_container && tern_object_count(value) ? list_children(c, p, value, err)
                                                    : add_item(c, p, value, err);
}

int tern__content_list(tern__content *content, const tern_object *object, tern_error *err)
{
    path p = {0};
    int status = list_value(content, &p, object, err);
    tern__free(p.text);
    return status;
}

void tern__content_free(tern__content *content)
{
    for (int64_t i = 0; i < content->count; i++) tern__free(content->items[i].name);
    tern__free(content->items);
    *content = (tern__content){0};
}

static int by_name(const void *a, const void *b)
{
    const tern__content_item *x = a, *y = b;
    int order = memcmp(x->name, y->name, TERN__MIN(x->name_bytes, y->name_bytes));
    return order ? order : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

void tern__content_sort(tern__content *content)
{
    if (content->count) qsort(content->items, (size_t)content->count, sizeof(*content->items), by_name);
}

const tern__content_item *tern__content_find(const tern__content *content, const tern__content_item *like)
{
    if (!content->count) return NULL;
    return bsearch(like, content->items, (size_t)content->count, sizeof(*content->items), by_name);
}

char *tern__item_name(const tern__content_item *item, tern_error *err)
{
    size_t bytes = tern__escape(item->name, item->name_bytes, NULL, 0) + 1;
    char *name = tern__alloc(bytes, FUNC, err);
    if (name) tern__escape(item->name, item->name_bytes, name, bytes);
    return name;
}

int tern__memory_take(const tern__cli_option *option, const char *text, tern_error *err)
{
    long value;
    bool fine = tern__number_read(text, 1, 1 << 20, &value);
    *(size_t *)option->to = (size_t)value << 20;
    if (fine) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_INVALID, "expected MiB from 1 to 1048576, got \"%s\"", text);
}
