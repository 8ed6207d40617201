/* match.h - which receive gets which message: one matcher for all back ends that move messages.
 *
 * An envelope is the header of a message (MPI's word). The envelopes of a source come in the order in which
 * they were sent, and receives in the order of their calls. Each takes the oldest of the other kind that
 * fits. So messages with the same source and tag keep their order, whatever comes between them.
 *
 * The body of a short message follows its envelope, and its send is done. The body of a long message stays
 * where it is until the envelope has met its receive. Then the receiver grants the body, one at a time from
 * each source. So a long message that is not received yet holds up no other message and takes no room.
 *
 * A rank looks at envelopes only while one of its receives waits for one. Those that fit no receive are
 * kept, together with their short bodies, up to a limit for each source. Beyond it their sender waits. */
#ifndef TERN_SRC_COMM_MOVE_MATCH_H
#define TERN_SRC_COMM_MOVE_MATCH_H

#include "comm/move/backend.h"

/* Sent between hosts as it is: the same bytes everywhere. */
typedef struct tern__envelope {
    uint64_t serial; /* number of this sender's message to this receiver, from 1 */
    uint64_t count;
    uint32_t tag, dtype, form, place;
} tern__envelope;

_Static_assert(sizeof(tern__envelope) == 32, "an envelope has no padding");

/* Transfers, oldest first. A transfer is in one queue at most. */
typedef struct tern__queue {
    tern__transfer *first, *last;
} tern__queue;

/* The messages to and from one rank. */
typedef struct tern__match_peer {
    uint64_t serial;     /* of the last message to it */
    tern__queue waiting; /* sends whose envelopes are not sent yet */
    tern__queue posted;  /* long sends whose envelopes are sent: they wait for a grant */
    tern__queue granted; /* receives that have met a long message: the first one's body may come */
    size_t kept;         /* bytes kept of its messages */
} tern__match_peer;

typedef struct tern__matcher {
    tern_group *group;
    size_t short_bytes;              /* the longest short message */
    size_t kept_most;                /* bytes kept of one source's messages */
    tern__queue receives;            /* receives that wait for an envelope */
    struct tern__kept *first, *last; /* envelopes that wait for a receive */
    tern__match_peer *peers;         /* [world] */
    int pending;                     /* transfers that are not done */
    int *family_pending;             /* those of all groups of the family; NULL: not counted */
    uint64_t ended;                  /* transfers that are done */
} tern__matcher;

/* Opens a matcher whose other fields are set. Must be closed after an error, too. */
int tern__matcher_open(tern__matcher *matcher, tern_group *group, tern_error *err);
void tern__matcher_close(tern__matcher *matcher);

/* Starts a transfer: a send is `waiting`; a receive takes a message that was kept, or waits. Fails for all
 * ranks if the kept message does not fit. */
int tern__match_start(tern__matcher *matcher, tern__transfer *transfer, tern_error *err);
/* Forgets a transfer, or with `if_unmet` a receive that waits for an envelope; false if it is in no queue, or
 * not in that one. */
bool tern__match_drop(tern__matcher *matcher, tern__transfer *transfer, bool if_unmet);
/* The transfer is done. */
void tern__match_finish(tern__matcher *matcher, tern__transfer *transfer);

/* True if a receive waits for a message from `source`. */
bool tern__match_wants(const tern__matcher *matcher, int source);
/* True if there is room to keep any message of `source`. */
bool tern__match_has_room(const tern__matcher *matcher, int source);
/* True if the envelope can be accepted: there is a receive for it, or room to keep it. */
bool tern__match_can_accept(const tern__matcher *matcher, int source, const tern__envelope *envelope);
/* An envelope has come. Sets *receive to its receive; NULL: it is kept. Sets *body to where a short body
 * goes; once it is there, call tern__match_complete. TERN_PENDING: there is no room to keep it. E_MISMATCH,
 * for all ranks: it does not fit its receive, which stays in its queue until it is dropped. */
int tern__match_accept(tern__matcher *matcher, int source, const tern__envelope *envelope,
                       tern__transfer **receive, char **body, tern_error *err);
/* Finishes the receive of a short message; that of a long one is `granted`. `receive` may be NULL. */
void tern__match_complete(tern__matcher *matcher, int source, const tern__envelope *envelope,
                          tern__transfer *receive);
/* Returns the send that `rank` has granted; NULL: there is none. */
tern__transfer *tern__match_posted(const tern__matcher *matcher, int rank, uint64_t grant);
/* Copies a message that is sent from a device's memory to `buf`. Does nothing for others. */
int tern__transfer_fetch(const tern__transfer *transfer, tern_error *err);

void tern__queue_push(tern__queue *queue, tern__transfer *transfer);
tern__transfer *tern__queue_pop(tern__queue *queue);
/* Removes a transfer; true if it was in the queue. */
bool tern__queue_remove(tern__queue *queue, tern__transfer *transfer);

tern__envelope tern__envelope_of(const tern__transfer *send);
size_t tern__envelope_bytes(const tern__envelope *envelope);
/* Returns the size of the body that follows the envelope; 0: it is long. */
static inline size_t tern__match_short_bytes(const tern__matcher *matcher, const tern__envelope *envelope)
{
    size_t bytes = tern__envelope_bytes(envelope);
    return bytes <= matcher->short_bytes ? bytes : 0;
}
static inline bool tern__match_is_short(const tern__matcher *matcher, const tern__envelope *envelope)
{
    return tern__envelope_bytes(envelope) <= matcher->short_bytes;
}
/* For errors. envelope_text: "5 f32 from rank 1, tag 3". transfer_text: "send of 5 f32 to rank 1, tag 3" or
 * "recv of 7 f32 from any rank, tag 0". */
void tern__envelope_text(const tern_group *group, int source, const tern__envelope *envelope, char *text,
                         size_t size);
void tern__transfer_text(const tern_group *group, const tern__transfer *transfer, char *text, size_t size);

static inline size_t tern__transfer_bytes(const tern__transfer *transfer)
{
    return transfer->count * tern_dtype_bytes(transfer->dtype);
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
