/* query.h - runs one query, from bytes to bytes, on a table. The server does this for its clients, the hash
 * store for itself, and the file store on its copy of the file. Knows neither sockets nor threads. */
#ifndef TERN_SRC_COMM_STORE_QUERY_H
#define TERN_SRC_COMM_STORE_QUERY_H

#include "comm/store/frame.h"
#include "comm/store/table.h"

typedef enum tern__query_result {
    TERN__QUERY_DONE,   /* the answer is appended to `reply`                                  */
    TERN__QUERY_BLOCKS, /* `waiter` waits: run the same query again when it is woken          */
    TERN__QUERY_BAD,    /* over a limit, not a number, or out of memory                       */
} tern__query_result;

/* Runs a query that tern__frame_scan found complete, with PyTorch 2's code. A BAD query of one key changes
 * nothing; MULTI_SET may have set some of its keys. */
tern__query_result tern__query_run(tern__table *table, const uint8_t *query, tern__key_waiter *waiter,
                                   tern__buffer *reply);
/* Ends a wait and appends the answer to its cancel. */
tern__query_result tern__query_cancel(tern__table *table, tern__key_waiter *waiter, tern__buffer *reply);
/* Returns true if the query changes values, so that a file store must write it to the file. */
bool tern__query_writes(uint8_t code);

#endif
