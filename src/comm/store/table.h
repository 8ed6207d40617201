/* table.h - keys, their values and queues, and who waits for them. A hash table with limits on keys and
 * bytes, which knows neither sockets nor threads.
 *
 * A waiter stands at one key. What makes the key exist moves it to the list of the woken, from which whoever
 * drives the table takes it and asks again: all that wait for a value, but of those that wait for a queue one
 * for each push, since only one can pop it. So a change costs nothing for those who wait for other keys. */
#ifndef TERN_SRC_COMM_STORE_TABLE_H
#define TERN_SRC_COMM_STORE_TABLE_H

#include "comm/store/buffer.h"

typedef struct tern__table tern__table;

/* All zeros: waits for nothing. */
typedef struct tern__key_waiter {
    struct tern__key_waiter *next, *prev;
    struct tern__entry *at; /* whose key it waits for, or NULL */
    bool is_woken;          /* in the list of the woken         */
    bool is_counted;        /* its barrier has counted it       */
} tern__key_waiter;

tern__table *tern__table_new(size_t keys_max, size_t bytes_max, const char *func, tern_error *err);
/* With no waiter at any key. */
void tern__table_free(tern__table *table);
void tern__table_clear(tern__table *table);

/* ---- values ---- */

/* NULL data if there is no such value; otherwise valid until the table changes. */
tern__bytes tern__table_get(const tern__table *table, tern__bytes key);
/* Whether `key` has a value or a queue that is not empty. */
bool tern__table_has(const tern__table *table, tern__bytes key);
/* False when a limit or the memory is reached; the table is then as before. */
bool tern__table_set(tern__table *table, tern__bytes key, tern__bytes value);
bool tern__table_append(tern__table *table, tern__bytes key, tern__bytes value);
/* False if there was no such value. */
bool tern__table_delete(tern__table *table, tern__bytes key);
/* Of keys with a value. */
size_t tern__table_count(const tern__table *table);
/* The next key with a value after *cursor, which begins as zeros; false behind the last. */
typedef struct tern__table_cursor {
    size_t bucket;
    const struct tern__entry *entry;
} tern__table_cursor;
bool tern__table_next(const tern__table *table, tern__table_cursor *cursor, tern__bytes *key);

/* ---- queues ---- */

bool tern__table_push(tern__table *table, tern__bytes key, tern__bytes value);
/* The oldest value, valid until tern__table_pop; NULL data if there is none. */
tern__bytes tern__table_front(const tern__table *table, tern__bytes key);
void tern__table_pop(tern__table *table, tern__bytes key);
size_t tern__table_queued(const tern__table *table, tern__bytes key);

/* ---- waiters ---- */

/* Puts the waiter at `key`. False: no memory. */
bool tern__table_wait(tern__table *table, tern__bytes key, tern__key_waiter *waiter);
/* Wherever it stands. */
void tern__table_leave(tern__table *table, tern__key_waiter *waiter);
/* Takes the first of the woken from their list; NULL if there is none. */
tern__key_waiter *tern__table_woken(tern__table *table);
void tern__table_wake(tern__table *table, tern__bytes key);

#endif
