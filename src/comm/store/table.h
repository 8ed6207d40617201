/* table.h - the store's keys and values: a hash table with limits on keys and bytes, and a growing buffer. */
#ifndef TERN_SRC_COMM_STORE_TABLE_H
#define TERN_SRC_COMM_STORE_TABLE_H

#include "base/base.h"

typedef struct tern__slice {
    const uint8_t *data;
    size_t bytes;
} tern__slice;

typedef struct tern__buffer {
    uint8_t *data;
    size_t bytes, cap;
} tern__buffer;

/* Room for `bytes` more; false when out of memory. */
bool tern__buffer_reserve(tern__buffer *buffer, size_t bytes);
bool tern__buffer_append(tern__buffer *buffer, const void *data, size_t bytes);
/* Takes `bytes` from the front. */
void tern__buffer_consume(tern__buffer *buffer, size_t bytes);
void tern__buffer_release(tern__buffer *buffer);

typedef struct tern__table tern__table;

tern__table *tern__table_new(size_t keys_max, size_t bytes_max, tern_error *err);
void tern__table_free(tern__table *table);

/* NULL data if there is no such key; otherwise valid until the next set. */
tern__slice tern__table_get(const tern__table *table, tern__slice key);
/* False when a limit or the memory is reached; the table is then as before. */
bool tern__table_set(tern__table *table, tern__slice key, tern__slice value);

#endif
