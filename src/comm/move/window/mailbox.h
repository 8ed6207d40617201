/* mailbox.h - what the files for messages within a host share: pair.c (memory between a sender and a
 * receiver), mailbox.c (sending and receiving through it), mailbox_wait.c (blocking, and its error
 * messages). */
#ifndef TERN_SRC_COMM_MOVE_WINDOW_MAILBOX_H
#define TERN_SRC_COMM_MOVE_WINDOW_MAILBOX_H

#include "comm/move/match.h"
#include "comm/move/window/window.h"

enum {
    TERN__PAIR_ENVELOPES = 128 << 10,
    TERN__PAIR_BODY = 256 << 10,
    TERN__PAIR_SHORT = 16 << 10, /* bytes; at most this long, a message follows its envelope in the ring */
    TERN__KEPT_BYTES = 1 << 20,  /* limit for messages from one source that came before their receives */
};

/* A pair is passed under TERN__SERIAL_OTHER. */

/* The memory between one sender and one receiver, created by the sender with its first message. It has two
 * rings: one of envelopes, each followed by its message if that is short, and one of the bodies of long
 * messages, one after the other. The words count bytes and only grow. */
typedef struct tern__pair {
    tern__shared_head head;
    tern__word written; /* by the sender: bytes of envelopes */
    tern__word read;    /* by the receiver */
    tern__word granted; /* by the receiver: the serial of the message whose body may be sent */
    tern__word filled;  /* by the sender: bytes of bodies */
    tern__word emptied; /* by the receiver */
    _Alignas(TERN__LINE) char envelopes[TERN__PAIR_ENVELOPES];
    char body[TERN__PAIR_BODY];
} tern__pair;

/* The rings to one rank. */
typedef struct tern__outbox {
    tern__pair *pair;                        /* NULL before the first message */
    uint64_t written, read, filled, emptied; /* read, emptied: as last seen */
} tern__outbox;

/* The rings from one rank. */
typedef struct tern__inbox {
    tern__pair *pair; /* NULL until the first message has been looked for */
    uint64_t read, emptied;
    const tern__transfer *granted; /* the receive whose grant was written last, or NULL */
    tern__envelope last;           /* the last envelope received; serial 0: none */
} tern__inbox;

typedef struct tern__mailbox {
    tern__progress_hook hook; /* first: the hook's functions cast it back */
    tern__shm_group *ranks;
    tern__matcher matcher;
    int turn;          /* the rank to look at first: the one after the source that TERN_ANY_SOURCE met last */
    tern__outbox *out; /* [world] */
    tern__inbox *in;   /* [world] */
} tern__mailbox;

/* ---- pair.c ---- */

/* Creates the pair for messages to `rank` and passes it to that rank. */
int tern__pair_create(tern__mailbox *mailbox, int rank, tern_error *err);
/* Maps the pair for messages from `rank`. Returns TERN_PENDING if `rank` has not created it yet. */
int tern__pair_attach(tern__mailbox *mailbox, int rank, tern_error *err);
void tern__pair_release(tern__mailbox *mailbox, int rank);

/* Returns the bytes that an envelope and the short body behind it take in the ring. */
static inline size_t tern__pair_record(size_t body_bytes)
{
    return tern__align_up(sizeof(tern__envelope) + body_bytes, TERN__LINE);
}

/* True if there is room in the ring of envelopes for `record` bytes; if there is any in the ring of bodies.
 */
bool tern__outbox_has_room(tern__outbox *out, size_t record);
bool tern__outbox_has_body_room(const tern__outbox *out);
/* Puts the envelope, and the `bytes` of a short body, into the ring. The receiver sees it only after the
 * pair's `written` has been moved. */
void tern__outbox_put(tern__outbox *out, const tern__envelope *envelope, const char *body, size_t bytes);
/* Copies as much of the body into the ring as there is room for. Returns true if it copied anything. */
bool tern__outbox_fill(tern__outbox *out, tern__transfer *send, const tern__shm *shm);
bool tern__inbox_has_envelope(const tern__inbox *in);
bool tern__inbox_has_body(const tern__inbox *in);
/* Returns the next envelope without taking it. */
tern__envelope tern__inbox_peek(const tern__inbox *in);
/* Takes the envelope, and a short body. */
void tern__inbox_get(tern__inbox *in, const tern__envelope *envelope, char *body, size_t bytes);
/* Copies as much of the body out of the ring as has come. Returns true if it copied anything. */
bool tern__inbox_empty(tern__inbox *in, tern__transfer *receive, const tern__shm *shm);

/* ---- mailbox.c ---- */

/* See tern__comm_backend; the first transfer opens the mailbox. */
int tern__mailbox_start(void *state, tern__transfer *transfer, tern_error *err);
bool tern__mailbox_drop(void *state, tern__transfer *transfer, bool if_unmet);
/* No transfer is pending. NULL does nothing. */
void tern__mailbox_close(tern__mailbox *mailbox);
int tern__mailbox_progress(tern__progress_hook *mailbox, tern_error *err);
/* True if something could be sent to `rank` or received from it now. */
bool tern__mailbox_can_move(tern__mailbox *mailbox, int rank);
/* ---- mailbox_wait.c ---- */

int tern__mailbox_wait(void *windows, const tern__transfer *transfer, tern_error *err);
/* Fails for all ranks with E_PEER: the other side has left. */
int tern__mailbox_fail_left(const tern__mailbox *mailbox, const tern__transfer *transfer, tern_error *err);
bool tern__mailbox_miss(tern__progress_hook *mailbox);

#endif
