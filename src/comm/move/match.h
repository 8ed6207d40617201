/* match.h - matches messages with receives, for every back end that moves messages.
 *
 * A letter is the header of a message (MPI's envelope). The letters of a source come in the order in which
 * they were sent, and receives in the order of their calls. Each takes the oldest of the other kind that
 * fits. So messages with the same source and tag keep their order, whatever comes between them. */
#ifndef TERN_SRC_COMM_MOVE_MATCH_H
#define TERN_SRC_COMM_MOVE_MATCH_H

#include "comm/move/backend.h"

/* Sent between hosts as it is: the same bytes everywhere. */
typedef struct tern__letter {
    uint64_t serial; /* number of this sender's message to this receiver, from 1 */
    uint64_t count;
    uint32_t tag, dtype, form, place;
} tern__letter;

_Static_assert(sizeof(tern__letter) == 32, "a letter has no padding");

/* Transfers, oldest first. A transfer is in one queue at most. */
typedef struct tern__queue {
    tern__transfer *first, *last;
} tern__queue;

/* A letter that came before its receive, with data of the back end. */
typedef struct tern__kept {
    struct tern__kept *next;
    int source;
    tern__letter letter;
    size_t bytes;
    char data[];
} tern__kept;

typedef struct tern__match {
    tern__queue receives;     /* receives without a letter */
    tern__kept *first, *last; /* letters without a receive */
} tern__match;

void tern__queue_push(tern__queue *queue, tern__transfer *transfer);
tern__transfer *tern__queue_pop(tern__queue *queue);
/* Removes a transfer; true if it was in the queue. */
bool tern__queue_remove(tern__queue *queue, tern__transfer *transfer);

/* True if a receive waits for a message from `source`. */
bool tern__match_wants(const tern__match *match, int source);
/* Removes and returns the receive for a new letter, or NULL. A receive that the letter does not fit makes the
 * group fail, and stays in the queue until it is dropped. */
tern__transfer *tern__match_letter(tern__match *match, int source, const tern__letter *letter);
/* True if there is a receive for the letter. */
bool tern__match_has(const tern__match *match, int source, const tern__letter *letter);
/* Removes and returns the kept letter for a new receive; yours: tern__free. NULL: there is none, or it does
 * not fit, and the receive waits. */
tern__kept *tern__match_receive(tern__match *match, tern__transfer *receive);
/* Keeps a letter, with room for `bytes` of data. NULL: E_MEMORY. */
tern__kept *tern__match_keep(tern__match *match, int source, const tern__letter *letter, size_t bytes,
                             tern_error *err);
/* Copies a message that is sent from a device's memory to `buf`. Does nothing for others. */
int tern__transfer_fetch(const tern__transfer *transfer, tern_error *err);
/* Frees the kept letters. */
void tern__match_close(tern__match *match);

tern__letter tern__letter_of(const tern__transfer *send, uint64_t serial);
size_t tern__letter_bytes(const tern__letter *letter);
/* True if the message has the form, dtype and count of the receive. */
bool tern__letter_fits(const tern__letter *letter, const tern__transfer *receive);
/* For errors. letter_text: "5 f32 from rank 1, tag 3". transfer_text: "send of 5 f32 to rank 1, tag 3" or
 * "recv of 7 f32 from any rank, tag 0". letter_mismatch: "rank 1: send of ..; rank 0: recv of ..". */
void tern__letter_text(const tern_group *group, int source, const tern__letter *letter, char *text,
                       size_t size);
void tern__transfer_text(const tern_group *group, const tern__transfer *transfer, char *text, size_t size);
void tern__letter_mismatch(const tern_group *group, int source, const tern__letter *letter,
                           const tern__transfer *receive, char *text, size_t size);

static inline size_t tern__transfer_bytes(const tern__transfer *transfer)
{
    return transfer->count * tern_dtype_bytes(transfer->dtype);
}

/* True if tokens are sent in place of the data. */
static inline bool tern__letter_is_apart(const tern__letter *letter, const tern__transfer *receive)
{
    return letter->place && receive->place && letter->place != receive->place;
}

/* A grant is the serial of a message that may be sent, with this bit if its token is wanted. */
#define TERN__GRANT_APART (UINT64_C(1) << 63)

static inline uint64_t tern__grant_of(const tern__transfer *receive)
{
    return receive->serial | (receive->is_apart ? TERN__GRANT_APART : 0);
}
/* Takes the grant of a message: fetches its data, if that is wanted. */
static inline void tern__grant_take(tern__transfer *send, uint64_t grant)
{
    send->is_apart = grant & TERN__GRANT_APART;
    if (!send->is_apart && send->fetch) send->fetch(send);
    send->fetch = NULL;
}

/* Return the body of a long message, its data or its token, and its size. */
static inline char *tern__body(const tern__transfer *transfer)
{
    return transfer->is_apart ? transfer->token : transfer->buf;
}
static inline size_t tern__body_bytes(const tern__transfer *transfer)
{
    return transfer->is_apart ? TERN__TOKEN : tern__transfer_bytes(transfer);
}

#endif
