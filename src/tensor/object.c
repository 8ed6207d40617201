/* object.c - makes, fills and frees the nodes of nested objects. Dicts are in object_dict.c. */
#include "base/text.h"
#include "tensor/object_nodes.h"

#include <string.h>

/* ---- nodes ---- */

/* Nodes are small, so this does not use tern__alloc, which takes at least a cache line. */
static void *node_new(tern_object_kind kind, size_t bytes, const char *func, tern_error *err)
{
    tern_object *node = tern__is_set(err) ? NULL : tern__alloc_raw(bytes, 16);
    if (!node) {
        tern__error_set(err, func, TERN_E_MEMORY, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    memset(node, 0, bytes);
    node->kind = (uint8_t)kind;
    node->refs = 1;
    return node;
}

tern_object *tern_object_none(tern_error *err)
{
    return node_new(TERN_OBJECT_NONE, sizeof(tern_object), __func__, err);
}

static tern_object *scalar_new(tern_object_kind kind, int64_t i, double f, const char *func, tern_error *err)
{
    scalar_node *node = node_new(kind, sizeof(*node), func, err);
    if (!node) return NULL;
    if (kind == TERN_OBJECT_FLOAT)
        node->value.f = f;
    else
        node->value.i = i;
    return &node->object;
}

tern_object *tern_object_bool(bool value, tern_error *err)
{
    return scalar_new(TERN_OBJECT_BOOL, value, 0, __func__, err);
}

tern_object *tern_object_int(int64_t value, tern_error *err)
{
    return scalar_new(TERN_OBJECT_INT, value, 0, __func__, err);
}

tern_object *tern_object_float(double value, tern_error *err)
{
    return scalar_new(TERN_OBJECT_FLOAT, 0, value, __func__, err);
}

tern_object *tern__object_text(tern_object_kind kind, size_t bytes, char **text, tern_error *err)
{
    const char *func = kind == TERN_OBJECT_STRING ? "tern_object_string" : "tern_object_bytes";
    text_node *node = node_new(kind, sizeof(*node) + bytes + 1, func, err);
    if (!node) return NULL;
    node->bytes = (int64_t)bytes;
    *text = node->data;
    return &node->object;
}

static tern_object *text_new(tern_object_kind kind, const void *data, size_t bytes, tern_error *err)
{
    char *text;
    tern_object *object = tern__object_text(kind, bytes, &text, err);
    if (object && bytes) memcpy(text, data, bytes);
    return object;
}

tern_object *tern__object_string(const char *text, size_t bytes, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (tern__utf8_check(text, bytes) >= 0) {
        tern__error_set(err, "tern_object_string", TERN_E_FORMAT, "a string of %zu bytes is not UTF-8",
                        bytes);
        return NULL;
    }
    return text_new(TERN_OBJECT_STRING, text, bytes, err);
}

tern_object *tern_object_string(const char *text, tern_error *err)
{
    if (text) return tern__object_string(text, strlen(text), err);
    tern__error_set(err, __func__, TERN_E_INVALID, "text is NULL");
    return NULL;
}

tern_object *tern_object_bytes(const void *data, size_t bytes, tern_error *err)
{
    if (!data && bytes) {
        tern__error_set(err, __func__, TERN_E_INVALID, "data is NULL, expected %zu bytes", bytes);
        return NULL;
    }
    return text_new(TERN_OBJECT_BYTES, data, bytes, err);
}

tern_object *tern_object_list(tern_error *err)
{
    return node_new(TERN_OBJECT_LIST, sizeof(list_node), __func__, err);
}

tern_object *tern_object_tuple(tern_error *err)
{
    return node_new(TERN_OBJECT_TUPLE, sizeof(list_node), __func__, err);
}

tern_object *tern_object_dict(tern_error *err)
{
    return node_new(TERN_OBJECT_DICT, sizeof(dict_node), __func__, err);
}

/* ---- tensors ---- */

tern_object *tern__object_tensor_take(tern_tensor *tensor, tern_error *err)
{
    tensor_node *node = node_new(TERN_OBJECT_TENSOR, sizeof(*node), "tern_object_tensor", err);
    if (!node) return NULL;
    node->tensor = tensor;
    node->is_own = true;
    return &node->object;
}

/* Makes a second handle of a kept or wrapped tensor. */
static tern_tensor *handle_of(const tern_tensor *tensor, tern_error *err)
{
    tern_tensor *handle = tern__alloc(sizeof(*handle), "tern_object_tensor", err);
    if (!handle) return NULL;
    handle->view = tensor->view;
    handle->device = tensor->device;
    handle->storage = tern__storage_hold(tensor->storage);
    return handle;
}

static int check_tensor(const tern_tensor *tensor, tern_error *err)
{
    char shape[TERN__SHAPE_TEXT];
    int status = tern__tensor_check(tensor, "tern_object_tensor", err);
    if (status || !tensor->scope) return status;
    return tern__error_set(err, "tern_object_tensor", TERN_E_LIFETIME,
                           "tensor %s belongs to a scope, which the object may outlive: tern_keep it first",
                           tern__shape_text(&tensor->view, shape));
}

/* Memory without a storage belongs to a module and may move, so the object refers to the module's handle. */
tern_object *tern_object_tensor(const tern_tensor *tensor, tern_error *err)
{
    if (tern__is_set(err) || check_tensor(tensor, err)) return NULL;
    tern_tensor *handle = tensor->storage ? handle_of(tensor, err) : (tern_tensor *)tensor;
    tern_object *object = handle ? tern__object_tensor_take(handle, err) : NULL;
    if (object) ((tensor_node *)object)->is_own = tensor->storage != NULL;
    if (!object && tensor->storage) tern_tensor_free(handle);
    return object;
}

/* ---- records ---- */

tern_object *tern__object_record(const char *name, size_t bytes, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (tern__utf8_check(name, bytes) >= 0) {
        tern__error_set(err, "tern_object_record", TERN_E_FORMAT, "a class's name is not UTF-8");
        return NULL;
    }
    record_node *node = node_new(TERN_OBJECT_RECORD, sizeof(*node) + bytes + 1, "tern_object_record", err);
    if (!node) return NULL;
    memcpy(node->name, name, bytes);
    return &node->object;
}

void tern__object_record_set(tern_object *record, tern_object *args, tern_object *state)
{
    record_node *node = (record_node *)record;
    if (args) {
        tern__object_drop(node->args);
        node->args = tern__object_hold(args);
    }
    if (state) {
        tern__object_drop(node->state);
        node->state = tern__object_hold(state);
    }
}

tern_object *tern_object_record(const char *name, tern_object *args, tern_object *state, tern_error *err)
{
    tern_object *record = NULL;
    if (tern__is_set(err))
        ;
    else if (!name || (args && args->kind != TERN_OBJECT_TUPLE) || (args && args->owned) ||
             (state && state->owned) || (args && args == state))
        tern__error_set(err, __func__, TERN_E_INVALID,
                        "\"%s\": expected a name, a tuple of arguments and a state, both without an owner",
                        name ? name : "(NULL)");
    else
        record = tern__object_record(name, strlen(name), err);
    if (record) {
        tern__object_record_set(record, args, state);
        if (args) args->owned = true, args->link = record;
        if (state) state->owned = true, state->link = record;
    }
    if (args && (record || !args->owned)) tern__object_drop(args);
    if (state && (record || !state->owned)) tern__object_drop(state);
    return record;
}

/* ---- freeing ---- */

/* Drops a reference; the last one puts the node on the list of nodes to free. */
static void let_go(tern_object *node, tern_object **doomed)
{
    if (!node || --node->refs > 0) return;
    node->link = *doomed;
    *doomed = node;
}

static void empty(tern_object *node, tern_object **doomed)
{
    if (node->kind == TERN_OBJECT_LIST || node->kind == TERN_OBJECT_TUPLE) {
        list_node *list = (list_node *)node;
        while (list->count > 0) let_go(list->items[--list->count], doomed);
    } else if (node->kind == TERN_OBJECT_DICT) {
        dict_node *dict = (dict_node *)node;
        while (dict->count > 0) {
            let_go(dict->pairs[--dict->count].key, doomed);
            let_go(dict->pairs[dict->count].item, doomed);
        }
    } else if (node->kind == TERN_OBJECT_RECORD) {
        record_node *record = (record_node *)node;
        let_go(record->args, doomed);
        let_go(record->state, doomed);
        record->args = record->state = NULL;
    }
}

static void node_free(tern_object *node)
{
    switch (node->kind) {
    case TERN_OBJECT_LIST:
    case TERN_OBJECT_TUPLE: tern__free(((list_node *)node)->items); break;
    case TERN_OBJECT_DICT:
        tern__free(((dict_node *)node)->pairs);
        tern__free(((dict_node *)node)->index);
        break;
    case TERN_OBJECT_TENSOR:
        if (((tensor_node *)node)->is_own) tern_tensor_free(((tensor_node *)node)->tensor);
        break;
    default: break;
    }
    tern__free(node);
}

static void free_all(tern_object *doomed)
{
    while (doomed) {
        tern_object *node = doomed;
        doomed = node->link;
        empty(node, &doomed);
        node_free(node);
    }
}

void tern__object_drop(tern_object *object)
{
    tern_object *doomed = NULL;
    let_go(object, &doomed);
    free_all(doomed);
}

void tern__object_empty(tern_object *container)
{
    tern_object *doomed = NULL;
    empty(container, &doomed);
    free_all(doomed);
}

void tern_object_free(tern_object *object)
{
    if (object && !object->owned) tern__object_drop(object);
}

/* ---- containers ---- */

int tern__object_reserve(tern_object *list, int64_t count, tern_error *err)
{
    list_node *node = (list_node *)list;
    if (count <= node->capacity) return TERN_OK;
    tern_object **grown = tern__alloc_raw((size_t)count * sizeof(*grown), 16);
    if (!grown)
        return tern__error_set(err, "tern_object_append", TERN_E_MEMORY, "out of memory: %lld items",
                               (long long)count);
    if (node->count) memcpy(grown, node->items, (size_t)node->count * sizeof(*grown));
    tern__free(node->items);
    node->items = grown;
    node->capacity = count;
    return TERN_OK;
}

int tern__object_append(tern_object *list, tern_object *item, tern_error *err)
{
    list_node *node = (list_node *)list;
    bool is_full = node->count == node->capacity;
    if (is_full && tern__object_reserve(list, TERN__MAX(2 * node->capacity, 2), err)) return TERN_E_MEMORY;
    node->items[node->count++] = tern__object_hold(item);
    return TERN_OK;
}

/* Returns true if `item` is `container` or contains it. */
static bool is_around(const tern_object *item, const tern_object *container)
{
    for (; container; container = container->owned ? container->link : NULL)
        if (container == item) return true;
    return false;
}

static int check_item(const tern_object *container, const tern_object *item, const char *func,
                      tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!container || !item)
        return tern__error_set(err, func, TERN_E_INVALID, "the %s is NULL", container ? "item" : "container");
    if (item->owned)
        return tern__error_set(err, func, TERN_E_INVALID, "the item, a %s, already has an owner",
                               tern_object_kind_name(item->kind));
    if (is_around(item, container))
        return tern__error_set(err, func, TERN_E_INVALID, "the item contains the container itself");
    return TERN_OK;
}

/* Moves the caller's reference to the container, or drops it after a failure. */
static void hand_over(tern_object *container, tern_object *item, bool taken)
{
    if (!item || (item->owned && !taken)) return;
    if (taken) {
        item->owned = true;
        item->link = container;
    }
    if (taken || !is_around(item, container)) tern__object_drop(item);
}

int tern_object_append(tern_object *list, tern_object *item, tern_error *err)
{
    int status = check_item(list, item, __func__, err);
    if (!status && list->kind != TERN_OBJECT_LIST && list->kind != TERN_OBJECT_TUPLE)
        status = tern__error_set(err, __func__, TERN_E_INVALID, "expected a list or tuple, got a %s",
                                 tern_object_kind_name(list->kind));
    if (!status) status = tern__object_append(list, item, err);
    hand_over(list, item, !status);
    return status;
}

int tern_object_set_at(tern_object *dict, tern_object *key, tern_object *item, tern_error *err)
{
    int status = check_item(dict, item, "tern_object_set", err);
    if (!status) status = check_item(dict, key, "tern_object_set", err);
    if (!status && dict->kind != TERN_OBJECT_DICT)
        status = tern__error_set(err, "tern_object_set", TERN_E_INVALID, "expected a dict, got a %s",
                                 tern_object_kind_name(dict->kind));
    if (!status && (!tern__object_is_key(key) || key == item))
        status = tern__error_set(err, "tern_object_set", TERN_E_INVALID, "a %s cannot be a key",
                                 tern_object_kind_name(key->kind));
    if (!status) status = tern__object_set(dict, key, item, err);
    if (key != item) hand_over(dict, key, !status);
    hand_over(dict, item, !status);
    return status;
}

int tern_object_set(tern_object *dict, const char *key, tern_object *item, tern_error *err)
{
    return tern_object_set_at(dict, tern_object_string(key, err), item, err);
}
