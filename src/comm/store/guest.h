/* guest.h - the server's side of one connection. A guest is a small state machine: first bytes, our own hello
 * and proof, queries. Nothing blocks, so nobody waits for a slow guest but that guest: an answer that does
 * not fit its socket waits in its buffer, and until it has left no more of this guest is read. A guest that
 * errs is closed; the server goes on.
 *
 * A guest is a stranger until it has proved that it knows the secret or, at a public store, has asked a first
 * query of PyTorch's, for which it has TERN__HELLO_DEADLINE_S. At a public store one that has not said a
 * thing may stay for longer, as PyTorch 1 opens a second connection on which it never speaks (and spins if
 * that is closed); silent ones are few, and the oldest goes first. */
#ifndef TERN_SRC_COMM_STORE_GUEST_H
#define TERN_SRC_COMM_STORE_GUEST_H

#include "comm/store/hello.h"
#include "comm/store/query.h"

typedef enum tern__guest_stage {
    TERN__STAGE_FIRST,
    TERN__STAGE_HELLO,
    TERN__STAGE_PROOF,
    TERN__STAGE_QUERIES
} tern__guest_stage;

typedef enum tern__standing { TERN__STRANGER, TERN__SILENT, TERN__KNOWN, TERN__STANDINGS } tern__standing;

typedef struct tern__store_guest {
    struct tern__store_guest *next, *prev; /* in the server's list of its standing              */
    struct tern__store_guest *next_ready;  /* in the server's list of those with more to run    */
    tern__key_waiter waiter;               /* of the query at the front of `in`                  */
    int fd;
    tern__guest_stage stage;
    tern__standing standing;
    tern__dialect dialect;
    int64_t deadline; /* of a stranger */
    tern__hello hello;
    tern__challenge challenge;
    tern__buffer in, out;
    tern__frame frame; /* of the query at `at`; no field: not begun    */
    size_t at;         /* bytes of `in` that are done with             */
    size_t counted;    /* bytes of its buffers in the server's sum     */
    uint32_t events;   /* that epoll looks for                         */
    bool is_ready, is_closed;
} tern__store_guest;

/* What of the server a guest needs. */
typedef struct tern__store_host {
    tern__table *table;
    const uint8_t *secret;
    bool is_public;
    int refused;
    tern__store_guest *ready; /* woken ones that may have more to run */
} tern__store_host;

/* Its socket has something, or is gone. */
void tern__guest_receive(tern__store_host *host, tern__store_guest *guest);
/* Runs what has come and is complete, and wakes who waited for it. */
void tern__guest_run(tern__store_host *host, tern__store_guest *guest);
/* Sends what fits. */
void tern__guest_flush(tern__store_guest *guest);
void tern__guest_refuse(tern__store_host *host, tern__store_guest *guest, const char *why);
void tern__guest_free(tern__store_host *host, tern__store_guest *guest);

#endif
