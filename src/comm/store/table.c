/* table.c - the hash table of a store: entries in chained buckets, with values, queues and waiters. */
#include "comm/store/table.h"

#include <sodium.h>
#include <string.h>
#include <xxhash.h>

enum { first_buckets = 64, item_cost = 64, tight_bytes = 256 };

typedef struct item {
    struct item *next;
    size_t bytes;
    uint8_t data[];
} item;

/* An entry exists as long as it has a value, a queue or a waiter. Its address never changes. */
typedef struct tern__entry {
    struct tern__entry *next;
    uint64_t hash;
    uint8_t *value; /* NULL: none */
    size_t value_bytes, value_cap;
    item *first, *last;
    size_t queued;
    tern__key_waiter *waiters, *last_waiter;
    size_t key_bytes;
    uint8_t key[];
} entry;

struct tern__table {
    entry **buckets;
    size_t bucket_count; /* a power of two */
    size_t entries;      /* in the buckets */
    size_t keys, keys_max, bytes, bytes_max;
    uint64_t seed; /* of the hash, random: nobody can choose keys that make long chains */
    tern__key_waiter *woken, *last_woken;
};

tern__table *tern__table_new(size_t keys_max, size_t bytes_max, const char *func, tern_error *err)
{
    tern__table *table = tern__alloc(sizeof(*table), func, err);
    if (!table) return NULL;
    *table = (tern__table){.bucket_count = first_buckets, .keys_max = keys_max, .bytes_max = bytes_max};
    table->buckets = tern__alloc(first_buckets * sizeof(entry *), func, err);
    if (!table->buckets) {
        tern__free(table);
        return NULL;
    }
    randombytes_buf(&table->seed, sizeof(table->seed));
    return table;
}

/* ---- entries ---- */

static uint64_t hash_of(const tern__table *table, tern__bytes key)
{
    return XXH3_64bits_withSeed(key.data, key.bytes, table->seed);
}

static entry *table_find(const tern__table *table, tern__bytes key)
{
    uint64_t hash = hash_of(table, key);
    entry *at = table->buckets[hash & (table->bucket_count - 1)];
    while (at && (at->hash != hash || at->key_bytes != key.bytes || memcmp(at->key, key.data, key.bytes)))
        at = at->next;
    return at;
}

/* Doubles the buckets. If there is no memory for that, the chains only get longer. */
static void table_grow(tern__table *table)
{
    size_t count = 2 * table->bucket_count;
    entry **buckets = tern__alloc(count * sizeof(*buckets), __func__, NULL);
    if (!buckets) return;
    for (size_t i = 0; i < table->bucket_count; i++)
        for (entry *at = table->buckets[i], *next; at; at = next) {
            next = at->next;
            entry **bucket = &buckets[at->hash & (count - 1)];
            at->next = *bucket;
            *bucket = at;
        }
    tern__free(table->buckets);
    table->buckets = buckets;
    table->bucket_count = count;
}

static entry *find_or_add(tern__table *table, tern__bytes key)
{
    entry *found = table_find(table, key);
    if (found) return found;
    if (table->entries >= table->bucket_count) table_grow(table);
    entry *fresh = tern__alloc(sizeof(*fresh) + key.bytes, __func__, NULL);
    if (!fresh) return NULL;
    fresh->hash = hash_of(table, key);
    fresh->key_bytes = key.bytes;
    if (key.bytes) memcpy(fresh->key, key.data, key.bytes);
    entry **bucket = &table->buckets[fresh->hash & (table->bucket_count - 1)];
    fresh->next = *bucket;
    *bucket = fresh;
    table->entries++;
    return fresh;
}

static void drop_if_bare(tern__table *table, entry *bare)
{
    if (bare->value || bare->first || bare->waiters) return;
    entry **link = &table->buckets[bare->hash & (table->bucket_count - 1)];
    while (*link != bare) link = &(*link)->next;
    *link = bare->next;
    table->entries--;
    tern__free(bare);
}

/* ---- waiters ---- */

static void unlink_waiter(tern__key_waiter **first, tern__key_waiter **last, tern__key_waiter *waiter)
{
    *(waiter->prev ? &waiter->prev->next : first) = waiter->next;
    *(waiter->next ? &waiter->next->prev : last) = waiter->prev;
    waiter->next = waiter->prev = NULL;
}

static void link_waiter(tern__key_waiter **first, tern__key_waiter **last, tern__key_waiter *waiter)
{
    waiter->prev = *last;
    *(*last ? &(*last)->next : first) = waiter;
    *last = waiter;
}

/* Wakes all waiters of the key. Waking one is not enough for a queue either: it may only look at the value,
 * or be gone, and then another must pop it. */
static void wake_waiters(tern__table *table, entry *at)
{
    while (at->waiters) {
        tern__key_waiter *waiter = at->waiters;
        unlink_waiter(&at->waiters, &at->last_waiter, waiter);
        waiter->at = NULL;
        waiter->is_woken = true;
        link_waiter(&table->woken, &table->last_woken, waiter);
    }
}

bool tern__table_wait(tern__table *table, tern__bytes key, tern__key_waiter *waiter)
{
    entry *at = find_or_add(table, key);
    if (!at) return false;
    waiter->at = at;
    link_waiter(&at->waiters, &at->last_waiter, waiter);
    return true;
}

void tern__table_leave(tern__table *table, tern__key_waiter *waiter)
{
    entry *at = waiter->at;
    if (waiter->is_woken) unlink_waiter(&table->woken, &table->last_woken, waiter);
    if (at) {
        unlink_waiter(&at->waiters, &at->last_waiter, waiter);
        drop_if_bare(table, at);
    }
    *waiter = (tern__key_waiter){0};
}

tern__key_waiter *tern__table_woken(tern__table *table)
{
    tern__key_waiter *waiter = table->woken;
    if (!waiter) return NULL;
    unlink_waiter(&table->woken, &table->last_woken, waiter);
    waiter->is_woken = false;
    return waiter;
}

void tern__table_wake(tern__table *table, tern__bytes key)
{
    entry *at = table_find(table, key);
    if (at) wake_waiters(table, at);
}

/* ---- values ---- */

static size_t cost_of(const entry *at)
{
    return at->value ? at->key_bytes + at->value_bytes : 0;
}

static bool value_fits(const tern__table *table, const entry *at, size_t bytes)
{
    size_t others = table->bytes - cost_of(at);
    bool is_room = at->value || table->keys < table->keys_max;
    return is_room && at->key_bytes + bytes <= table->bytes_max - TERN__MIN(others, table->bytes_max);
}

/* Makes room for a value of `bytes`, keeping the first `kept`. Reuses the old memory unless it is far too
 * large. */
static bool table_reserve(entry *at, size_t bytes, size_t kept)
{
    bool wasteful = at->value_cap > tight_bytes && bytes < at->value_cap / 4;
    if (at->value && bytes <= at->value_cap && !wasteful) return true;
    size_t cap = kept ? TERN__MAX(bytes, 2 * kept) : TERN__MAX(bytes, (size_t)1);
    uint8_t *fresh = tern__alloc(cap, __func__, NULL);
    if (!fresh) return false;
    if (kept) memcpy(fresh, at->value, kept);
    tern__free(at->value);
    at->value = fresh;
    at->value_cap = cap;
    return true;
}

/* Sets the key's value, or appends to it. */
static bool write_value(tern__table *table, tern__bytes key, tern__bytes value, bool append)
{
    entry *at = find_or_add(table, key);
    if (!at) return false;
    bool is_new = !at->value;
    size_t kept = append ? at->value_bytes : 0, before = cost_of(at);
    if (!value_fits(table, at, kept + value.bytes) || !table_reserve(at, kept + value.bytes, kept)) {
        drop_if_bare(table, at);
        return false;
    }
    if (value.bytes) memcpy(at->value + kept, value.data, value.bytes);
    at->value_bytes = kept + value.bytes;
    table->bytes += cost_of(at) - before;
    table->keys += is_new;
    if (is_new) wake_waiters(table, at);
    return true;
}

tern__bytes tern__table_get(const tern__table *table, tern__bytes key)
{
    const entry *found = table_find(table, key);
    return found ? (tern__bytes){found->value, found->value_bytes} : (tern__bytes){0};
}

bool tern__table_has(const tern__table *table, tern__bytes key)
{
    const entry *found = table_find(table, key);
    return found && (found->value || found->first);
}

bool tern__table_set(tern__table *table, tern__bytes key, tern__bytes value)
{
    return write_value(table, key, value, false);
}

bool tern__table_append(tern__table *table, tern__bytes key, tern__bytes value)
{
    return write_value(table, key, value, true);
}

bool tern__table_delete(tern__table *table, tern__bytes key)
{
    entry *found = table_find(table, key);
    if (!found || !found->value) return false;
    table->bytes -= cost_of(found);
    table->keys--;
    tern__free(found->value);
    found->value = NULL;
    found->value_bytes = found->value_cap = 0;
    drop_if_bare(table, found);
    return true;
}

size_t tern__table_count(const tern__table *table)
{
    return table->keys;
}

bool tern__table_next(const tern__table *table, tern__table_cursor *cursor, tern__bytes *key)
{
    const entry *at = cursor->entry ? cursor->entry->next : table->buckets[cursor->bucket];
    while (!at || !at->value) {
        if (at)
            at = at->next;
        else if (++cursor->bucket < table->bucket_count)
            at = table->buckets[cursor->bucket];
        else
            return false;
    }
    cursor->entry = at;
    *key = (tern__bytes){at->key, at->key_bytes};
    return true;
}

/* ---- queues ---- */

static size_t item_bytes(const item *it)
{
    return item_cost + it->bytes;
}

bool tern__table_push(tern__table *table, tern__bytes key, tern__bytes value)
{
    size_t room = table->bytes_max - TERN__MIN(table->bytes, table->bytes_max);
    if (item_cost + value.bytes > room) return false;
    entry *at = find_or_add(table, key);
    item *fresh = at ? tern__alloc(sizeof(*fresh) + value.bytes + 1, __func__, NULL) : NULL;
    if (!fresh) {
        if (at) drop_if_bare(table, at);
        return false;
    }
    fresh->bytes = value.bytes;
    if (value.bytes) memcpy(fresh->data, value.data, value.bytes);
    *(at->last ? &at->last->next : &at->first) = fresh;
    at->last = fresh;
    at->queued++;
    table->bytes += item_bytes(fresh);
    wake_waiters(table, at);
    return true;
}

tern__bytes tern__table_front(const tern__table *table, tern__bytes key)
{
    const entry *found = table_find(table, key);
    if (!found || !found->first) return (tern__bytes){0};
    return (tern__bytes){found->first->data, found->first->bytes};
}

static void waiter_pop(tern__table *table, entry *at)
{
    item *first = at->first;
    table->bytes -= item_bytes(first);
    at->first = first->next;
    if (!at->first) at->last = NULL;
    at->queued--;
    tern__free(first);
}

void tern__table_pop(tern__table *table, tern__bytes key)
{
    entry *found = table_find(table, key);
    if (!found || !found->first) return;
    waiter_pop(table, found);
    drop_if_bare(table, found);
}

size_t tern__table_queued(const tern__table *table, tern__bytes key)
{
    const entry *found = table_find(table, key);
    return found ? found->queued : 0;
}

/* ---- the whole table ---- */

void tern__table_clear(tern__table *table)
{
    for (size_t i = 0; i < table->bucket_count; i++)
        for (entry *at = table->buckets[i], *next; at; at = next) {
            next = at->next;
            while (at->first) waiter_pop(table, at);
            if (at->value)
                tern__table_delete(table, (tern__bytes){at->key, at->key_bytes});
            else
                drop_if_bare(table, at);
        }
}

void tern__table_free(tern__table *table)
{
    if (!table) return;
    tern__table_clear(table);
    tern__free(table->buckets);
    tern__free(table);
}
