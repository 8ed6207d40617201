/* match.h - which message goes to which receive: for every back end that moves messages, and apart from how
 * it moves them.
 *
 * A message says what it is in a letter. Letters of one source are shown to the match in the order in which
 * they were sent, and receives in the order of their calls; each takes the oldest of the other kind that
 * fits. So messages of one source and tag keep their order, whatever other tags and sources lie between. */
#ifndef TERN_SRC_COMM_MATCH_H
#define TERN_SRC_COMM_MATCH_H

#include "comm/backend.h"

/* The same bytes on all hosts. */
typedef struct tern__letter {
    uint64_t serial; /* among those from this sender to this receiver, from 1 */
    uint64_t count;
    uint32_t tag, dtype, form, place;
} tern__letter;

_Static_assert(sizeof(tern__letter) == 32, "a letter has no padding");

/* Transfers, oldest first. One is in one queue at most. */
typedef struct tern__queue {
    tern__transfer *first, *last;
} tern__queue;

/* A letter that came before its receive, and what the carrier keeps with it. */
typedef struct tern__kept {
    struct tern__kept *next;
    int source;
    tern__letter letter;
    size_t bytes;
    char data[];
} tern__kept;

typedef struct tern__match {
    tern__queue receives;     /* that have found no letter       */
    tern__kept *first, *last; /* letters that nobody has received */
} tern__match;

void tern__queue_push(tern__queue *queue, tern__transfer *transfer);
tern__transfer *tern__queue_pop(tern__queue *queue);
/* True if it was there. */
bool tern__queue_remove(tern__queue *queue, tern__transfer *transfer);

/* A receive is waiting for something from `source`. */
bool tern__match_wants(const tern__match *match, int source);
/* The receive that a new letter is for, taken out; or NULL. One that the letter does not fit is the group's
 * failure, and stays until it is dropped. */
tern__transfer *tern__match_letter(tern__match *match, int source, const tern__letter *letter);
/* There is one. */
bool tern__match_has(const tern__match *match, int source, const tern__letter *letter);
/* The kept letter that a new receive gets, taken out and yours: tern__free. Or NULL, and the receive waits;
 * as does one that the letter does not fit.
 */
tern__kept *tern__match_receive(tern__match *match, tern__transfer *receive);
/* Puts a letter behind those that are kept, with room for `bytes` of data. NULL: E_MEMORY. */
tern__kept *tern__match_keep(tern__match *match, int source, const tern__letter *letter, size_t bytes,
                             tern_error *err);
/* Forgets the letters. */
void tern__match_close(tern__match *match);

tern__letter tern__letter_of(const tern__transfer *send, uint64_t serial);
size_t tern__letter_bytes(const tern__letter *letter);
/* What came is what is received. */
bool tern__letter_fits(const tern__letter *letter, const tern__transfer *receive);
/* "5 f32 from rank 1, tag 3": a letter that came; "send of 5 f32 to rank 1, tag 3", "recv of 7 f32 from any
 * rank, tag 0"; "rank 1: send of ..; rank 0: recv of ..", of two that do not fit. */
void tern__letter_text(const tern_group *group, int source, const tern__letter *letter, char *text,
                       size_t size);
void tern__transfer_text(const tern_group *group, const tern__transfer *transfer, char *text, size_t size);
void tern__letter_mismatch(const tern_group *group, int source, const tern__letter *letter,
                           const tern__transfer *receive, char *text, size_t size);

static inline size_t tern__transfer_bytes(const tern__transfer *transfer)
{
    return transfer->count * tern_dtype_bytes(transfer->dtype);
}

/* Their tokens go over, and not the data. */
static inline bool tern__letter_is_apart(const tern__letter *letter, const tern__transfer *receive)
{
    return letter->place && receive->place && letter->place != receive->place;
}

/* A grant is the serial of a message, with this bit if its token is wanted. */
#define TERN__GRANT_APART (UINT64_C(1) << 63)

static inline uint64_t tern__grant_of(const tern__transfer *receive)
{
    return receive->serial | (receive->is_apart ? TERN__GRANT_APART : 0);
}
/* Of a message that is granted. */
static inline void tern__grant_take(tern__transfer *send, uint64_t grant)
{
    send->is_apart = grant & TERN__GRANT_APART;
    if (!send->is_apart && send->fetch) send->fetch(send);
    send->fetch = NULL;
}

/* What goes over of a long message. */
static inline char *tern__body(const tern__transfer *transfer)
{
    return transfer->is_apart ? transfer->token : transfer->buf;
}
static inline size_t tern__body_bytes(const tern__transfer *transfer)
{
    return transfer->is_apart ? TERN__TOKEN : tern__transfer_bytes(transfer);
}

#endif
