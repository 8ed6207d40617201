/* object_dict.c - dicts. Pairs are stored in the order of insertion. From nine pairs on, a hash table with
 * open addressing, at most half full, finds a key's pair. Keys may come from untrusted files, so they are
 * hashed with a secret of the dict: a file cannot have a million keys that collide. */
#include "tensor/object_nodes.h"

#include <math.h>
#include <sodium.h>
#include <string.h>

#define FEW 8

/* A key in the form in which keys are compared: numbers that are equal in Python are the same key. */
typedef struct key_form {
    enum { NONE, WHOLE, FRACTION, STRING, BYTES } class;
    const void *data;
    size_t bytes;
    int64_t whole;
    double fraction;
} key_form;

static void number_form(const scalar_node *node, key_form *form)
{
    double f = node->value.f;
    bool is_float = node->object.kind == TERN_OBJECT_FLOAT;
    bool is_whole = !is_float || (f >= -0x1p63 && f < 0x1p63 && f == trunc(f));
    *form = (key_form){.class = is_whole ? WHOLE : FRACTION, .bytes = 8};
    form->whole = is_float ? 0 : node->value.i;
    if (is_float && is_whole) form->whole = (int64_t)f;
    if (!is_whole) form->fraction = f;
}

/* `form` must not be moved, since it points into itself. */
static void form_of(const tern_object *key, key_form *form)
{
    const text_node *text = (const text_node *)key;
    switch (key->kind) {
    case TERN_OBJECT_NONE: *form = (key_form){.class = NONE}; return;
    case TERN_OBJECT_STRING:
    case TERN_OBJECT_BYTES:
        *form = (key_form){.class = key->kind == TERN_OBJECT_STRING ? STRING : BYTES,
                           .data = text->data,
                           .bytes = (size_t)text->bytes};
        return;
    default:
        number_form((const scalar_node *)key, form);
        form->data = form->class == WHOLE ? (const void *)&form->whole : &form->fraction;
    }
}

static bool is_same(const key_form *a, const key_form *b)
{
    if (a->class != b->class || a->bytes != b->bytes) return false;
    return a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0;
}

bool tern__object_is_key(const tern_object *object)
{
    return object->kind <= TERN_OBJECT_BYTES;
}

/* ---- the table ---- */

static uint64_t hash_of(const dict_node *dict, const key_form *key)
{
    uint64_t hash;
    crypto_shorthash((unsigned char *)&hash, key->data, key->bytes, dict->secret);
    return hash;
}

/* Returns the slot of the key, or the empty slot for it. A slot holds the pair's index + 1. */
static int64_t slot_of(const dict_node *dict, const key_form *key)
{
    int64_t slot = (int64_t)(hash_of(dict, key) & (uint64_t)(dict->slots - 1));
    for (; dict->index[slot]; slot = (slot + 1) & (dict->slots - 1)) {
        key_form other;
        form_of(dict->pairs[dict->index[slot] - 1].key, &other);
        if (is_same(key, &other)) break;
    }
    return slot;
}

static int64_t dict_find(const dict_node *dict, const key_form *key)
{
    if (dict->index) return dict->index[slot_of(dict, key)] - 1;
    for (int64_t i = 0; i < dict->count; i++) {
        key_form other;
        form_of(dict->pairs[i].key, &other);
        if (is_same(key, &other)) return i;
    }
    return -1;
}

static int grow_index(dict_node *dict, int64_t capacity, tern_error *err)
{
    int64_t slots = 2 * capacity;
    int64_t *index = tern__alloc_raw((size_t)slots * sizeof(*index), 16);
    if (!index)
        return tern__error_set(err, "tern_object_set", TERN_E_MEMORY, "out of memory: %lld slots",
                               (long long)slots);
    memset(index, 0, (size_t)slots * sizeof(*index));
    if (!dict->index && sodium_init() < 0) {
        tern__free(index);
        return tern__error_set(err, "tern_object_set", TERN_E_SYSTEM,
                               "libsodium cannot start: there is no source of random numbers");
    }
    if (!dict->index) randombytes_buf(dict->secret, sizeof(dict->secret));
    tern__free(dict->index);
    dict->index = index;
    dict->slots = slots;
    for (int64_t i = 0; i < dict->count; i++) {
        key_form key;
        form_of(dict->pairs[i].key, &key);
        dict->index[slot_of(dict, &key)] = i + 1;
    }
    return TERN_OK;
}

/* Grows the table first: if there is no memory for the pairs then, a table that is too large does no harm. */
static int dict_grow(dict_node *dict, tern_error *err)
{
    int64_t capacity = TERN__MAX(2 * dict->capacity, 2);
    int status = capacity > FEW ? grow_index(dict, capacity, err) : TERN_OK;
    if (status) return status;
    pair *grown = tern__alloc_raw((size_t)capacity * sizeof(*grown), 16);
    if (!grown)
        return tern__error_set(err, "tern_object_set", TERN_E_MEMORY, "out of memory: %lld pairs",
                               (long long)capacity);
    if (dict->count) memcpy(grown, dict->pairs, (size_t)dict->count * sizeof(*grown));
    tern__free(dict->pairs);
    dict->pairs = grown;
    dict->capacity = capacity;
    return TERN_OK;
}

/* ---- set and get ---- */

int tern__object_set(tern_object *object, tern_object *key, tern_object *item, tern_error *err)
{
    dict_node *dict = (dict_node *)object;
    key_form form;
    form_of(key, &form);
    int64_t at = dict_find(dict, &form);
    if (at >= 0) {
        tern_object *before = dict->pairs[at].item;
        dict->pairs[at].item = tern__object_hold(item);
        tern__object_drop(before);
        return TERN_OK;
    }
    int status = dict->count == dict->capacity ? dict_grow(dict, err) : TERN_OK;
    if (status) return status;
    if (dict->index) dict->index[slot_of(dict, &form)] = dict->count + 1;
    dict->pairs[dict->count++] = (pair){tern__object_hold(key), tern__object_hold(item)};
    return TERN_OK;
}

static const tern_object *dict_get(const tern_object *object, const key_form *key)
{
    if (!object || object->kind != TERN_OBJECT_DICT) return NULL;
    const dict_node *dict = (const dict_node *)object;
    int64_t at = dict_find(dict, key);
    return at < 0 ? NULL : dict->pairs[at].item;
}

const tern_object *tern_object_get(const tern_object *dict, const char *key)
{
    if (!key) return NULL;
    return dict_get(dict, &(key_form){.class = STRING, .data = key, .bytes = strlen(key)});
}

const tern_object *tern_object_get_at(const tern_object *dict, int64_t key)
{
    return dict_get(dict, &(key_form){.class = WHOLE, .data = &key, .bytes = sizeof(key)});
}
