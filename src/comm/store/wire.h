/* wire.h - the store's queries on the wire, as PyTorch's TCPStore encodes them: one byte of code, integers in
 * the machine's little-endian order, a string as u64 length + bytes.
 *
 *   SET key value -> nothing         GET key -> value (empty if missing)     ADD key i64 -> i64 sum
 *   CHECK u64 n, n keys -> u8        WAIT u64 n, n keys -> u8 once all exist CANCEL_WAIT -> u8
 *
 * A counter is stored as decimal ASCII. Whoever cancels a wait must expect its answer before the cancel's. */
#ifndef TERN_SRC_COMM_STORE_WIRE_H
#define TERN_SRC_COMM_STORE_WIRE_H

#include "comm/store/store.h"

enum tern__query_code {
    TERN__QUERY_SET = 1,
    TERN__QUERY_GET = 3,
    TERN__QUERY_ADD = 4,
    TERN__QUERY_CHECK = 5,
    TERN__QUERY_WAIT = 6,
    TERN__QUERY_CANCEL_WAIT = 12,
};

enum tern__check_reply { TERN__CHECK_READY = 0, TERN__CHECK_NOT_READY = 1 };
enum tern__wait_reply { TERN__WAIT_DONE = 0, TERN__WAIT_CANCELED = 1 };

#define TERN__QUERY_KEYS_MAX 64 /* of one CHECK or WAIT */
/* The longest query: SET with key and value at their limits. CHECK and WAIT stay below it. */
#define TERN__QUERY_BYTES_MAX ((size_t)1 + 8 + TERN__STORE_KEY_MAX + 8 + TERN__STORE_VALUE_MAX)

#define TERN__STORE_KEYS_MAX  (128u << 10)   /* keys of one server    */
#define TERN__STORE_BYTES_MAX (256ull << 20) /* their bytes, in total */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

#endif
