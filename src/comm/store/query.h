/* query.h - one query, from bytes to bytes, on a table: what the server does for its clients, the hash store
 * for itself, and the file store on its copy of the file. No sockets, no threads. */
#ifndef TERN_SRC_COMM_STORE_QUERY_H
#define TERN_SRC_COMM_STORE_QUERY_H

#include "comm/store/frame.h"
#include "comm/store/table.h"

typedef enum tern__query_result {
    TERN__QUERY_DONE,   /* the answer is appended to `reply`                                             */
    TERN__QUERY_BLOCKS, /* `waiter` waits: run the same query again when it was woken                    */
    TERN__QUERY_BAD,    /* over a limit, no number, or no memory: nothing has changed                    */
} tern__query_result;

/* Runs a query that tern__frame_scan found complete, with a code of PyTorch 2. */
tern__query_result tern__query_run(tern__table *table, const uint8_t *query, tern__key_waiter *waiter,
                                   tern__buffer *reply);
/* The answer to whoever gives up waiting. */
tern__query_result tern__query_cancel(tern__table *table, tern__key_waiter *waiter, tern__buffer *reply);
/* Does the query change values, so that a file must hear of it? */
bool tern__query_writes(uint8_t code);

#endif
