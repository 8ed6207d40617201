/* mailbox.h - what the files of the native back end's messages share: pair.c (memory between a sender and a
 * receiver), mailbox.c (what is sent and received through it), mailbox_wait.c (blocking, and what is said
 * when it fails). */
#ifndef TERN_SRC_COMM_NATIVE_MAILBOX_H
#define TERN_SRC_COMM_NATIVE_MAILBOX_H

#include "comm/match.h"
#include "comm/native/native.h"

enum {
    TERN__PAIR_LETTERS = 128 << 10,
    TERN__PAIR_BODY = 256 << 10,
    TERN__PAIR_SHORT = 16 << 10, /* bytes of a message that lie behind its letter */
    TERN__KEPT_BYTES = 1 << 20,  /* of messages from one source that came before their receives */
};

/* Serial of a pair's descriptor: far from those of windows. */
#define TERN__PAIR_SERIAL UINT32_MAX

/* Made by the sender with the first message: two rings, of letters, short messages behind theirs, and of the
 * bodies of long messages, one after the other. Words count bytes and only grow. */
typedef struct tern__pair {
    tern__shared_head head;
    tern__word written; /* by the sender: of letters  */
    tern__word read;    /* by the receiver            */
    tern__word granted; /* by the receiver: the serial of the message whose body is to come */
    tern__word filled;  /* by the sender: of bodies   */
    tern__word emptied; /* by the receiver            */
    _Alignas(TERN__LINE) char letters[TERN__PAIR_LETTERS];
    char body[TERN__PAIR_BODY];
} tern__pair;

/* To one rank. */
typedef struct tern__outbox {
    tern__pair *pair;                        /* NULL before the first message      */
    uint64_t serial;                         /* of the last message                */
    uint64_t written, read, filled, emptied; /* the receiver's as seen last        */
    tern__queue waiting;                     /* for room in the ring of letters    */
    tern__queue posted;                      /* long ones, to be granted           */
} tern__outbox;

/* From one rank. */
typedef struct tern__inbox {
    tern__pair *pair; /* NULL before its first message has been looked for */
    uint64_t read, emptied;
    tern__queue granted; /* receives of long messages; the first is granted */
    size_t kept;         /* bytes                        */
    tern__letter last;   /* that came; serial 0: none    */
} tern__inbox;

struct tern__mailbox {
    struct tern__mailbox *next; /* of all groups of the family */
    tern__native *native;
    tern__match match;
    int pending;       /* transfers */
    uint64_t ended;    /* that are done */
    int turn;          /* looked at first: the rank after the one that any-source met last */
    tern__outbox *out; /* [world] */
    tern__inbox *in;   /* [world] */
};

/* ---- pair.c ---- */

/* The way to `rank`, made and told to it. */
int tern__pair_create(tern__mailbox *mailbox, int rank, tern_error *err);
/* TERN_PENDING: `rank` has not made one yet. */
int tern__pair_attach(tern__mailbox *mailbox, int rank, tern_error *err);
void tern__pair_release(tern__mailbox *mailbox, int rank);

static inline bool tern__pair_is_short(const tern__letter *letter)
{
    return tern__letter_bytes(letter) <= TERN__PAIR_SHORT;
}

/* Room that a letter takes. */
static inline size_t tern__pair_record(const tern__letter *letter)
{
    return tern__align_up(sizeof(*letter) + (tern__pair_is_short(letter) ? tern__letter_bytes(letter) : 0),
                          TERN__LINE);
}

/* Of letters; of bodies. */
bool tern__outbox_has_room(tern__outbox *out, size_t record);
bool tern__outbox_has_body_room(const tern__outbox *out);
/* Puts the letter, and a short message's `data`, into the ring; nobody sees it before the pair's
 * `written` says so. */
void tern__outbox_put(tern__outbox *out, const tern__letter *letter, const char *data);
/* Puts as much of the body as there is room for. True if anything was. */
bool tern__outbox_fill(tern__outbox *out, tern__transfer *send, tern__lobby *lobby);
bool tern__inbox_has_letter(const tern__inbox *in);
bool tern__inbox_has_body(const tern__inbox *in);
/* The letter that is next. */
tern__letter tern__inbox_peek(const tern__inbox *in);
/* Takes it, and a short message's data. */
void tern__inbox_get(tern__inbox *in, const tern__letter *letter, char *data);
/* Takes as much of the body as has come. True if anything was. */
bool tern__inbox_empty(tern__inbox *in, tern__transfer *receive, tern__lobby *lobby);

/* ---- mailbox.c ---- */

void *tern__mailbox_open(void *state, tern_error *err);
void tern__mailbox_close(void *mailbox);
int tern__mailbox_start(void *mailbox, tern__transfer *transfer, tern_error *err);
int tern__mailbox_carry(void *mailbox, tern_error *err);
void tern__mailbox_drop(void *mailbox, tern__transfer *transfer);
int tern__mailbox_progress(tern__mailbox *mailbox, tern_error *err);
/* Something could be sent to `rank` or received from it now. */
bool tern__mailbox_can_move(tern__mailbox *mailbox, int rank);
/* The receive has found its message, whose body is to come. */
bool tern__mailbox_has_met(const tern__mailbox *mailbox, const tern__transfer *receive);

/* ---- mailbox_wait.c ---- */

int tern__mailbox_await(void *mailbox, const tern__transfer *transfer, tern_error *err);
/* E_PEER if the other side has left; and that at once; E_TIMEOUT. For all ranks. */
int tern__mailbox_check_left(tern__mailbox *mailbox, const tern__transfer *transfer, tern_error *err);
int tern__mailbox_fail_left(const tern__mailbox *mailbox, const tern__transfer *transfer, tern_error *err);
int tern__mailbox_fail_late(const tern__mailbox *mailbox, const tern__transfer *transfer, tern_error *err);
/* Misses whoever holds up a message of this rank. False if something could be done for one. */
bool tern__mailbox_miss(tern__mailbox *mailbox);
/* "wait" for the timeline. */
void tern__mailbox_trace(const tern__mailbox *mailbox, const tern__transfer *transfer, int64_t began);

#endif
