/* record.h - the records of a file store's file, as PyTorch's FileStore writes them: u32 length and key, u32
 * length and value. The last record of a key holds; one whose key has a "-" before it deletes. */
#ifndef TERN_SRC_COMM_STORE_RECORD_H
#define TERN_SRC_COMM_STORE_RECORD_H

#include "comm/store/table.h"

typedef enum tern__record_state {
    TERN__RECORD_DONE,
    TERN__RECORD_CUT, /* its end is missing                          */
    TERN__RECORD_BAD, /* a length over its limit, or a table that is full */
} tern__record_state;

/* Applies the record at the front of `in`; *used = its length. */
tern__record_state tern__record_apply(tern__table *table, tern__bytes in, size_t *used);
/* The record that says what the table has of `key`. False: no memory. */
bool tern__record_append(tern__buffer *out, const tern__table *table, tern__bytes key);

#endif
