/* guest.h - the server's side of one connection. A guest is a small state machine: the first bytes, tern's
 * hello and proof, queries. Nothing blocks, so a slow guest delays only itself: an answer that does not fit
 * into the socket waits in the guest's buffer, and the server reads nothing more from it until the answer is
 * sent. A guest that makes an error is closed; the server goes on.
 *
 * A guest is a stranger until it has proved that it knows the secret or, at a public store, has sent a first
 * query of PyTorch's. It has TERN__HELLO_DEADLINE_S for that. A guest that has sent nothing may stay longer
 * at a public store, because PyTorch 1 opens a second connection that it never uses, and spins if that is
 * closed. The number of such silent guests is limited; the oldest is closed first. */
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
    struct tern__store_guest *next, *prev; /* in the server's list of guests with this standing */
    struct tern__store_guest *next_ready;  /* in the server's list of guests with more to run    */
    tern__key_waiter waiter;               /* for the query at `at`                              */
    int fd;
    tern__guest_stage stage;
    tern__standing standing;
    tern__dialect dialect;
    int64_t deadline; /* for a stranger's proof or first query */
    tern__hello hello;
    tern__challenge challenge;
    tern__buffer in, out;
    tern__frame frame; /* scan of the query at `at`; no field: not begun */
    size_t at;         /* bytes of `in` that have been run               */
    size_t counted;    /* bytes of its buffers in the server's total     */
    uint32_t events;   /* epoll's events for this guest                  */
    bool is_ready, is_closed;
} tern__store_guest;

/* The part of the server that guests use. */
typedef struct tern__store_host {
    tern__table *table;
    const uint8_t *secret;
    bool is_public;
    int refused;
    tern__store_guest *ready; /* woken guests that may have more to run */
} tern__store_host;

/* Reads from the guest's socket, which has data or is closed. */
void tern__guest_receive(tern__store_host *host, tern__store_guest *guest);
/* Runs the complete queries, and wakes the guests that waited for their keys. */
void tern__guest_run(tern__store_host *host, tern__store_guest *guest);
/* Sends as much of the answers as the socket takes. */
void tern__guest_flush(tern__store_guest *guest);
void tern__guest_refuse(tern__store_host *host, tern__store_guest *guest, const char *why);
void tern__guest_free(tern__store_host *host, tern__store_guest *guest);

#endif
