/* staging.h - the queue of a group's collectives, and the staging ring for memory that is in no window.
 *
 * Every call becomes one or more pieces: buffers are cut into pieces that fit a slot ("place") of the staging
 * ring. A rank copies its data into the ring, and its result out of it. If a call does not fit the ring as a
 * whole, every rank has to wait for it anyway, so each rank computes its own result directly into the
 * caller's memory. In an all_reduce it does so for its own part, which then never enters the ring; in a
 * reduce the root copies the result out as usual. In a move each rank copies the data that it takes from the
 * other ranks' rings.
 *
 * In a group that has an arena (arena.h), a call that may use it is *placed*: each rank says where its part
 * of the data is. If the call fits one place of the ring, a buffer in the arena stays where it is, and any
 * other is copied to the ring. A larger call is one piece in the arena if all ranks have their memory there.
 * If one has not, all of them send it through the ring, piece by piece. So does a list, whatever its size.
 * In the arena, a list has a table of its extents, for the peers, in its place of the ring.
 *
 * Two kinds of calls *ask* first: their first piece is a question, and only its answer says how many further
 * pieces there are. So later calls wait for it. In a move with lists of counts the ranks exchange their
 * counts; in a placed call that is large or a list they say whether their memory is in the arena. What asks
 * depends only on what the ranks compare, so all of them cut a call in the same way.
 *
 * Pieces are posted in the order of the calls, and those of a call one after the other, whatever the
 * timing. So all ranks post the same sequence. Memory of devices crosses the ring in the same pieces
 * (ring_copy.h). */
#ifndef TERN_SRC_COMM_CALL_STAGING_H
#define TERN_SRC_COMM_CALL_STAGING_H

#include "comm/move/backend.h"

/* The number of places in the ring: at most as many pieces are posted and not yet finished. */
#define TERN__FLIGHTS 4
/* The slots of the user's channel, enough that posting never waits. A work that this rank has retired was
 * posted by every rank, and a rank posts a new piece only when all but the last FLIGHTS ones are copied
 * out. So the slowest rank has retired all but the last 2 * FLIGHTS works. */
#define TERN__FLIGHT_SLOTS (2 * TERN__FLIGHTS)

/* The caller's buffers. The operands of a list are sent one after the other. */
typedef struct tern__work_operand {
    const char *in; /* the two differ in all_gather, reduce_scatter and moves */
    char *out;
    size_t count; /* elements per rank */
} tern__work_operand;

struct tern_work {
    tern_work *next;            /* in the queue, until its last piece has landed */
    tern_group *group;          /* NULL once it left the queue */
    const char *func;           /* the public call */
    tern__post post;            /* common to all its pieces */
    tern__work_operand operand; /* the only one, unless the work is a list */
    const tern__work_operand *operands;
    size_t operand_count;
    const tern_span *gives, *takes; /* [world] in a move with lists of counts */
    bool is_placed;                 /* it is one piece, and where it is may differ between the ranks */
    bool asks;                      /* its first piece is a question: counts, or where the memory is */
    bool is_undecided;              /* that has not been answered yet */
    size_t count;                   /* elements per rank */
    size_t piece;                   /* elements per rank in a piece */
    size_t pieces;                  /* its pieces, with the question; those in the ring, posted and done: */
    size_t loaded, started, landed;
    const tern__extent *extents; /* the buffers in windows, or NULL: they are copied */
    int extent_count;
    tern__extent extent;       /* the only one, unless the work is a list */
    struct tern__flight *call; /* the debug back end's record, or NULL */
    bool is_away;              /* some of its memory is a device's and crosses the ring */
    tern_device *home;         /* the device with all of its memory, if the back end reaches it */
    bool is_direct;            /* the back end works in that memory: `extents` are set */
    const tern__extent *outs;  /* the results of a list of reduce_scatter, if is_direct */
    int status;                /* TERN_PENDING while it is in the queue */
    double timeout_s;          /* of waits for it; 0: the group's */
    int64_t wait_began;        /* the first one; 0: there was none */
    bool is_transfer;          /* a message: of the fields above, only `group` and `func` are set */
    tern__transfer transfer;
};

/* True if all of the work's data is in the ring at once. */
static inline bool tern__work_fits_ring(const tern_work *work)
{
    return work->pieces - work->asks <= TERN__FLIGHTS;
}

typedef struct tern__staging tern__staging;

/* Opens a group's staging. Collective. */
tern__staging *tern__staging_open(tern_group *group, tern_error *err);
/* Closes it; works that are still in the queue fail. NULL does nothing. */
void tern__staging_close(tern__staging *staging);

/* Makes a work for a caller, who frees it with tern__work_free, possibly after its staging was closed. The
 * staging keeps freed works for reuse, so that warm steps allocate nothing. A group of one has no staging
 * (NULL). */
tern_work *tern__work_new(tern__staging *staging, const char *func, tern_error *err);
void tern__work_free(tern_work *work);
/* Iterates over the works that callers hold, the newest first: returns the one after `after`, which may be
 * NULL. NULL at the end. */
tern_work *tern__staging_held(const tern__staging *staging, const tern_work *after);
/* Returns memory for the lists of a work from tern__work_new, which owns it. */
void *tern__work_room(tern_work *work, size_t bytes, const char *func, tern_error *err);

/* Returns the number of parts in a rank's data: world, if it has one for each rank; else 1. */
size_t tern__staging_parts(const tern_group *group, tern__kind kind);
/* Returns the elements per rank in a piece of a call with `count` elements; 0: the count is unknown. */
size_t tern__staging_piece(const tern_group *group, tern__kind kind, tern_dtype dtype, size_t count);
/* Returns the bytes of a place of the ring. */
size_t tern__staging_place(const tern_group *group);
/* Returns the number of works so far. */
uint64_t tern__staging_calls(const tern__staging *staging);
/* Numbers the work and appends it to the queue. */
void tern__staging_push(tern__staging *staging, tern_work *work);
/* Returns the number of a call of one piece that is done without the queue, which is empty. The ring's places
 * go on as on a rank that queues the call. */
uint64_t tern__staging_pass(tern__staging *staging);
/* Finishes and posts pieces of any work, as far as possible. Never blocks. */
int tern__staging_pump(tern__staging *staging, tern_error *err);
/* Removes a work that will not be finished. Only after a failure of the group: pieces may be under way. */
void tern__staging_drop(tern__staging *staging, tern_work *work, int status);
/* Blocks until the work is done; TERN_PENDING at the end of a limited wait. */
int tern__staging_wait(tern__staging *staging, tern_work *work, tern_error *err);
/* Blocks until the work is done or has failed, and is out of the queue. */
int tern__staging_finish(tern__staging *staging, tern_work *work, tern_error *err);

#endif
