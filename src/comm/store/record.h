/* record.h - the records of a file store's file, as PyTorch's FileStore writes them: u32 length and key, u32
 * length and value. The last record of a key counts. A record with "-" in front of the key deletes the key.
 */
#ifndef TERN_SRC_COMM_STORE_RECORD_H
#define TERN_SRC_COMM_STORE_RECORD_H

#include "comm/store/table.h"

typedef enum tern__record_state {
    TERN__RECORD_DONE,
    TERN__RECORD_CUT, /* its end is missing                       */
    TERN__RECORD_BAD, /* a length over its limit, or a full table */
} tern__record_state;

/* Applies the record at the front of `in`. *used = its length. */
tern__record_state tern__record_apply(tern__table *table, tern__bytes in, size_t *used);
/* Appends a record of the table's value of `key`, or of its deletion. False: out of memory. */
bool tern__record_append(tern__buffer *out, const tern__table *table, tern__bytes key);

#endif
