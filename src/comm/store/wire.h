/* wire.h - the stores' queries on the wire, as PyTorch's TCPStore encodes them: one byte of code, then its
 * fields, without any framing. Integers are little-endian; a string is a u64 length and its bytes.
 *
 * There are two dialects, PyTorch 2's and PyTorch 1's, which has fewer queries with other codes. A shape
 * lists the fields: `k` is a key, `v` a value, `1`, `4` and `8` an integer of that many bytes. `[` is a u64
 * count: the rest of the shape is repeated that often. `?` is a u64: the rest follows once, unless it is 0.
 * `*` repeats the rest once for each key of the query.
 *
 * A connection of PyTorch 2 begins with the code 0 and a magic number. (0 is SET in PyTorch 1, but no key is
 * as long as the magic number would say.) A PING follows, whose number the server returns. A tern client
 * sends TERN__PING_ASKS; a tern server answers TERN__PING_IS_TERN, and the client then uses FETCH as well.
 * Counters are stored as decimal ASCII. A client that cancels a wait must expect the wait's answer before the
 * cancel's. */
#ifndef TERN_SRC_COMM_STORE_WIRE_H
#define TERN_SRC_COMM_STORE_WIRE_H

#include "base/base.h"

#include <tern/store.h>

#define TERN__NO_CODE 255

/* name, code of PyTorch 2, code of PyTorch 1, shape of the query, shape of the answer */
#define TERN__QUERY_LIST(X)                                                                                  \
    X(SET, 1, 0, "kv", "")                                                                                   \
    X(COMPARE_SET, 2, 1, "kvv", "v")                                                                         \
    X(GET, 3, 2, "k", "v") /* empty if there is no value */                                                  \
    X(ADD, 4, 3, "k8", "8")                                                                                  \
    X(CHECK, 5, 4, "[k", "1")                                                                                \
    X(WAIT, 6, 5, "[k", "1")                                                                                 \
    X(NUM_KEYS, 7, 6, "", "8")                                                                               \
    X(DELETE, 8, 8, "k", "8")                                                                                \
    X(APPEND, 9, TERN__NO_CODE, "kv", "")                                                                    \
    X(MULTI_GET, 10, TERN__NO_CODE, "[k", "*v")                                                              \
    X(MULTI_SET, 11, TERN__NO_CODE, "[kv", "")                                                               \
    X(CANCEL_WAIT, 12, TERN__NO_CODE, "", "1")                                                               \
    X(PING, 13, TERN__NO_CODE, "4", "4")                                                                     \
    X(QUEUE_PUSH, 14, TERN__NO_CODE, "kv", "")                                                               \
    X(QUEUE_POP, 15, TERN__NO_CODE, "k",                                                                     \
      "?v") /* the length before the pop, and the value unless that is 0 */                                  \
    X(QUEUE_LEN, 16, TERN__NO_CODE, "k", "8")                                                                \
    X(LIST_KEYS, 17, TERN__NO_CODE, "", "[v")                                                                \
    X(BARRIER, 18, TERN__NO_CODE, "k8", "1")                                                                 \
    X(FETCH, 64, TERN__NO_CODE, "k", "1v") /* tern's own: WAIT and GET in one */

typedef enum tern__query_code {
#define X(name, code, code1, shape, answer) TERN__QUERY_##name = code,
    TERN__QUERY_LIST(X)
#undef X
} tern__query_code;

enum tern__check_reply { TERN__CHECK_READY = 0, TERN__CHECK_NOT_READY = 1 };
enum tern__wait_reply { TERN__WAIT_DONE = 0, TERN__WAIT_CANCELED = 1 };

#define TERN__VALIDATE     0
#define TERN__MAGIC        0x3C85F7CEu
#define TERN__PING_ASKS    0x4E524554u /* PyTorch sends its pid, which is always smaller */
#define TERN__PING_IS_TERN 0x21524554u

#define TERN__QUERY_KEYS_MAX  (128u << 10)   /* keys of a query                    */
#define TERN__QUERY_BYTES_MAX (64ull << 20)  /* bytes of a query, and of an answer */
#define TERN__STORE_KEYS_MAX  (128u << 10)   /* keys of a store                    */
#define TERN__STORE_BYTES_MAX (256ull << 20) /* bytes of a store's keys and values */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

#endif
