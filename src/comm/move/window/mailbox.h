/* mailbox.h - what the files for messages within a host share: pair.c (memory between a sender and a
 * receiver), mailbox.c (sending and receiving through it), mailbox_wait.c (blocking, and its error
 * messages). */
#ifndef TERN_SRC_COMM_MOVE_WINDOW_MAILBOX_H
#define TERN_SRC_COMM_MOVE_WINDOW_MAILBOX_H

#include "comm/move/match.h"
#include "comm/move/window/window.h"

enum {
    TERN__PAIR_LETTERS = 128 << 10,
    TERN__PAIR_BODY = 256 << 10,
    TERN__PAIR_SHORT = 16 << 10, /* bytes; at most this long, a message follows its letter in the ring */
    TERN__KEPT_BYTES = 1 << 20,  /* limit for messages from one source that came before their receives */
};

/* A pair is passed under TERN__SERIAL_OTHER. */

/* The memory between one sender and one receiver, created by the sender with its first message. It has two
 * rings: one of letters, each followed by its message if that is short, and one of the bodies of long
 * messages, one after the other. The words count bytes and only grow. */
typedef struct tern__pair {
    tern__shared_head head;
    tern__word written; /* by the sender: bytes of letters */
    tern__word read;    /* by the receiver */
    tern__word granted; /* by the receiver: the serial of the message whose body may be sent */
    tern__word filled;  /* by the sender: bytes of bodies */
    tern__word emptied; /* by the receiver */
    _Alignas(TERN__LINE) char letters[TERN__PAIR_LETTERS];
    char body[TERN__PAIR_BODY];
} tern__pair;

/* Messages to one rank. */
typedef struct tern__outbox {
    tern__pair *pair;                        /* NULL before the first message */
    uint64_t serial;                         /* of the last message */
    uint64_t written, read, filled, emptied; /* read, emptied: as last seen */
    tern__queue waiting;                     /* for room in the ring of letters */
    tern__queue posted;                      /* long messages, not sent completely yet */
} tern__outbox;

/* Messages from one rank. */
typedef struct tern__inbox {
    tern__pair *pair; /* NULL until the first message has been looked for */
    uint64_t read, emptied;
    tern__queue granted; /* receives of long messages; the first one is granted */
    size_t kept;         /* bytes of kept messages */
    tern__letter last;   /* the last letter received; serial 0: none */
} tern__inbox;

typedef struct tern__mailbox {
    tern__party party; /* first: the party's functions cast it back */
    tern__shm_group *ranks;
    tern__match match;
    int pending;       /* transfers */
    uint64_t ended;    /* transfers that are done */
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

static inline bool tern__pair_is_short(const tern__letter *letter)
{
    return tern__letter_bytes(letter) <= TERN__PAIR_SHORT;
}

/* Returns the bytes that a letter takes in the ring, including a short message. */
static inline size_t tern__pair_record(const tern__letter *letter)
{
    return tern__align_up(sizeof(*letter) + (tern__pair_is_short(letter) ? tern__letter_bytes(letter) : 0),
                          TERN__LINE);
}

/* True if there is room in the ring of letters for `record` bytes; if there is any in the ring of bodies. */
bool tern__outbox_has_room(tern__outbox *out, size_t record);
bool tern__outbox_has_body_room(const tern__outbox *out);
/* Puts the letter, and a short message's `data`, into the ring. The receiver sees it only after the pair's
 * `written` has been moved. */
void tern__outbox_put(tern__outbox *out, const tern__letter *letter, const char *data);
/* Copies as much of the body into the ring as there is room for. Returns true if it copied anything. */
bool tern__outbox_fill(tern__outbox *out, tern__transfer *send, const tern__shm *shm);
bool tern__inbox_has_letter(const tern__inbox *in);
bool tern__inbox_has_body(const tern__inbox *in);
/* Returns the next letter without taking it. */
tern__letter tern__inbox_peek(const tern__inbox *in);
/* Takes the letter, and a short message's data. */
void tern__inbox_get(tern__inbox *in, const tern__letter *letter, char *data);
/* Copies as much of the body out of the ring as has come. Returns true if it copied anything. */
bool tern__inbox_empty(tern__inbox *in, tern__transfer *receive, const tern__shm *shm);

/* ---- mailbox.c ---- */

void *tern__mailbox_open(void *state, tern_error *err);
void tern__mailbox_close(void *mailbox);
int tern__mailbox_start(void *mailbox, tern__transfer *transfer, tern_error *err);
int tern__mailbox_carry(void *mailbox, tern_error *err);
void tern__mailbox_drop(void *mailbox, tern__transfer *transfer);
int tern__mailbox_progress(tern__party *mailbox, tern_error *err);
/* True if something could be sent to `rank` or received from it now. */
bool tern__mailbox_can_move(tern__mailbox *mailbox, int rank);
/* True if the receive has found its message, whose body is still to come. */
bool tern__mailbox_has_met(const tern__mailbox *mailbox, const tern__transfer *receive);

/* ---- mailbox_wait.c ---- */

int tern__mailbox_await(void *mailbox, const tern__transfer *transfer, tern_error *err);
/* Fails for all ranks with E_PEER: the other side has left. */
int tern__mailbox_fail_left(const tern__mailbox *mailbox, const tern__transfer *transfer, tern_error *err);
bool tern__mailbox_miss(tern__party *mailbox);

#endif
