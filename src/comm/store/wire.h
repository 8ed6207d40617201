/* wire.h - the stores' queries on the wire, as PyTorch's TCPStore encodes them: one byte of code, integers in
 * the machine's little-endian order, a string as u64 length + bytes, nothing around them.
 *
 * Two dialects: PyTorch 2's, and PyTorch 1's, which has other codes and fewer of them. In a shape `k` is a
 * key, `v` a value, `1`, `4`, `8` an integer of so many bytes, `[` a u64 that says how often the rest comes,
 * `?` one that says whether it comes at all, and `*` a rest that comes once for each key of the query.
 *
 * A connection of PyTorch 2 begins with the code 0 and a magic number; 0 is SET in PyTorch 1, but no key is
 * as long as the magic number would say. What follows it is a PING, whose number comes back; our own clients
 * ask with TERN__PING_ASKS and are answered by TERN__PING_IS_TERN if the server is ours too, and then also
 * use FETCH. A counter is stored as decimal ASCII. Whoever cancels a wait must expect its answer before the
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
    X(GET, 3, 2, "k", "v") /* empty if there is none */                                                      \
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
    X(QUEUE_POP, 15, TERN__NO_CODE, "k", "?v") /* the length before, and the value if that is not 0 */       \
    X(QUEUE_LEN, 16, TERN__NO_CODE, "k", "8")                                                                \
    X(LIST_KEYS, 17, TERN__NO_CODE, "", "[v")                                                                \
    X(BARRIER, 18, TERN__NO_CODE, "k8", "1")                                                                 \
    X(FETCH, 64, TERN__NO_CODE, "k", "1v") /* our own: WAIT and GET in one */

typedef enum tern__query_code {
#define X(name, code, code1, shape, answer) TERN__QUERY_##name = code,
    TERN__QUERY_LIST(X)
#undef X
} tern__query_code;

enum tern__check_reply { TERN__CHECK_READY = 0, TERN__CHECK_NOT_READY = 1 };
enum tern__wait_reply { TERN__WAIT_DONE = 0, TERN__WAIT_CANCELED = 1 };

#define TERN__VALIDATE     0
#define TERN__MAGIC        0x3C85F7CEu
#define TERN__PING_ASKS    0x4E524554u /* more than any pid, which is what PyTorch sends */
#define TERN__PING_IS_TERN 0x21524554u

#define TERN__QUERY_KEYS_MAX  (128u << 10)   /* of one query                        */
#define TERN__QUERY_BYTES_MAX (64ull << 20)  /* of one query, and of one answer     */
#define TERN__STORE_KEYS_MAX  (128u << 10)   /* keys of one store                   */
#define TERN__STORE_BYTES_MAX (256ull << 20) /* their bytes, in total             */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

#endif
