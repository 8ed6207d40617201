/* query.h - one query of a client, from bytes to bytes: no sockets, no threads. */
#ifndef TERN_SRC_COMM_STORE_QUERY_H
#define TERN_SRC_COMM_STORE_QUERY_H

#include "comm/store/table.h"

typedef enum tern__query_result {
    TERN__QUERY_DONE,   /* *used bytes of `in` are dealt with, the answer is appended to `reply`           */
    TERN__QUERY_MORE,   /* not yet complete                                                                */
    TERN__QUERY_BLOCKS, /* a WAIT for keys that do not exist yet: try again after the table has changed    */
    TERN__QUERY_BAD,    /* no query, over a limit, or no memory: the client cannot be served any more       */
} tern__query_result;

/* Runs the query at the front of `in`. *changed = whether the table did. Never allocates by what a length
 * claims. */
tern__query_result tern__query_run(tern__table *table, tern__slice in, size_t *used, tern__buffer *reply,
                                   bool *changed);

#endif
