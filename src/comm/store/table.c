#include "comm/store/table.h"

#include <string.h>

bool tern__buffer_reserve(tern__buffer *buffer, size_t bytes)
{
    if (buffer->cap - buffer->bytes >= bytes) return true;
    size_t cap = TERN__MAX(TERN__MAX(2 * buffer->cap, buffer->bytes + bytes), (size_t)256);
    uint8_t *grown = tern__realloc_array(buffer->data, buffer->bytes, cap, __func__, NULL);
    if (!grown) return false;
    buffer->data = grown;
    buffer->cap = cap;
    return true;
}

bool tern__buffer_append(tern__buffer *buffer, const void *data, size_t bytes)
{
    if (!tern__buffer_reserve(buffer, bytes)) return false;
    if (bytes) memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
    return true;
}

void tern__buffer_consume(tern__buffer *buffer, size_t bytes)
{
    buffer->bytes -= bytes;
    if (buffer->bytes)
        memmove(buffer->data, buffer->data + bytes, buffer->bytes);
    else
        tern__buffer_release(buffer);
}

void tern__buffer_release(tern__buffer *buffer)
{
    tern__free(buffer->data);
    *buffer = (tern__buffer){0};
}

/* ---- table: chains from a fixed number of buckets, an entry in one block ---- */

enum { bucket_count = 1024 };

typedef struct entry {
    struct entry *next;
    size_t key_bytes, value_bytes;
    uint8_t bytes[]; /* key, then value, then a zero so that no value has a NULL address */
} entry;

struct tern__table {
    entry *buckets[bucket_count];
    size_t keys, keys_max, bytes, bytes_max;
};

tern__table *tern__table_new(size_t keys_max, size_t bytes_max, tern_error *err)
{
    tern__table *table = tern__alloc(sizeof(*table), "tern_group_open", err);
    if (!table) return NULL;
    table->keys_max = keys_max;
    table->bytes_max = bytes_max;
    return table;
}

void tern__table_free(tern__table *table)
{
    for (int i = 0; table && i < bucket_count; i++)
        while (table->buckets[i]) {
            entry *dead = table->buckets[i];
            table->buckets[i] = dead->next;
            tern__free(dead);
        }
    tern__free(table);
}

/* FNV-1a. Only authenticated clients choose keys, so long chains are nobody's attack. */
static size_t bucket_of(tern__slice key)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < key.bytes; i++) hash = (hash ^ key.data[i]) * 1099511628211u;
    return (size_t)(hash % bucket_count);
}

/* The pointer that points, or would point, at the key's entry. */
static entry **find(const tern__table *table, tern__slice key)
{
    entry **link = (entry **)&table->buckets[bucket_of(key)];
    while (*link && ((*link)->key_bytes != key.bytes || memcmp((*link)->bytes, key.data, key.bytes)))
        link = &(*link)->next;
    return link;
}

tern__slice tern__table_get(const tern__table *table, tern__slice key)
{
    const entry *found = *find(table, key);
    if (!found) return (tern__slice){0};
    return (tern__slice){found->bytes + found->key_bytes, found->value_bytes};
}

bool tern__table_set(tern__table *table, tern__slice key, tern__slice value)
{
    entry **link = find(table, key), *old = *link;
    size_t before = old ? old->key_bytes + old->value_bytes : 0;
    if (!old && table->keys >= table->keys_max) return false;
    if (table->bytes - before + key.bytes + value.bytes > table->bytes_max) return false;
    entry *fresh = tern__alloc(sizeof(*fresh) + key.bytes + value.bytes + 1, __func__, NULL);
    if (!fresh) return false;
    fresh->next = old ? old->next : NULL;
    fresh->key_bytes = key.bytes;
    fresh->value_bytes = value.bytes;
    memcpy(fresh->bytes, key.data, key.bytes);
    if (value.bytes) memcpy(fresh->bytes + key.bytes, value.data, value.bytes);
    table->keys += !old;
    table->bytes += key.bytes + value.bytes - before;
    *link = fresh;
    tern__free(old);
    return true;
}
