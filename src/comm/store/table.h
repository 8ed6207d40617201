/* table.h - keys with their values, queues and waiters: a hash table with limits on keys and bytes. Knows
 * neither sockets nor threads.
 *
 * A waiter waits for one key. When a set or a push makes the key exist, all its waiters move to the list of
 * woken ones, from which the caller takes them to run their queries again. So a change costs nothing for the
 * waiters of other keys. */
#ifndef TERN_SRC_COMM_STORE_TABLE_H
#define TERN_SRC_COMM_STORE_TABLE_H

#include "comm/store/buffer.h"

typedef struct tern__table tern__table;

/* Zeroed, it waits for nothing. */
typedef struct tern__key_waiter {
    struct tern__key_waiter *next, *prev;
    struct tern__entry *at; /* the entry it waits for, or NULL  */
    bool is_woken;          /* in the list of woken waiters     */
    bool is_counted;        /* its barrier has counted it       */
} tern__key_waiter;

tern__table *tern__table_new(size_t keys_max, size_t bytes_max, const char *func, tern_error *err);
/* No key may have a waiter. */
void tern__table_free(tern__table *table);
void tern__table_clear(tern__table *table);

/* ---- values ---- */

/* Returns the key's value, valid until the table changes, or NULL data if it has none. */
tern__bytes tern__table_get(const tern__table *table, tern__bytes key);
/* Returns true if `key` has a value or a queue that is not empty. */
bool tern__table_has(const tern__table *table, tern__bytes key);
/* Both return false, and leave the table unchanged, if a limit is reached or memory is out. */
bool tern__table_set(tern__table *table, tern__bytes key, tern__bytes value);
bool tern__table_append(tern__table *table, tern__bytes key, tern__bytes value);
/* Returns false if the key had no value. */
bool tern__table_delete(tern__table *table, tern__bytes key);
/* Returns the number of keys with a value. */
size_t tern__table_count(const tern__table *table);
/* Advances *cursor, zeroed at first, to the next key with a value. Returns false after the last. */
typedef struct tern__table_cursor {
    size_t bucket;
    const struct tern__entry *entry;
} tern__table_cursor;
bool tern__table_next(const tern__table *table, tern__table_cursor *cursor, tern__bytes *key);

/* ---- queues ---- */

bool tern__table_push(tern__table *table, tern__bytes key, tern__bytes value);
/* Returns the oldest value, valid until tern__table_pop, or NULL data if there is none. */
tern__bytes tern__table_front(const tern__table *table, tern__bytes key);
void tern__table_pop(tern__table *table, tern__bytes key);
size_t tern__table_queued(const tern__table *table, tern__bytes key);

/* ---- waiters ---- */

/* Makes the waiter wait for `key`. False: out of memory. */
bool tern__table_wait(tern__table *table, tern__bytes key, tern__key_waiter *waiter);
/* Removes the waiter from whichever list it is in. */
void tern__table_leave(tern__table *table, tern__key_waiter *waiter);
/* Removes the first waiter from the woken list and returns it, or NULL. */
tern__key_waiter *tern__table_woken(tern__table *table);
void tern__table_wake(tern__table *table, tern__bytes key);

#endif
