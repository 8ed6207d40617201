/* staging.h - the queue of a group's collectives, and the window through which ordinary memory travels.
 *
 * All calls become pieces: one if the buffer lies in a window, else as many as its bytes need places in the
 * staging ring. A rank copies its data in, and its result out. Of a call that the ring does not hold whole
 * every rank has to come back anyway: there each works its result out for itself, and puts it where the
 * caller wants it at once; of an all_reduce, its part, which never enters its ring; of a reduce the root as
 * any other copies it. In a move each rank takes what is for it from the others' rings. One with lists of
 * counts begins with a piece in which each rank tells each other what it gives and takes; only then is it
 * known how many pieces follow, so later calls wait for that. Pieces are posted in the order of the calls,
 * and those of one call one after the other, whatever the timing, so every rank posts the same sequence.
 * Memory of devices crosses the ring in the same pieces (ferry.h). */
#ifndef TERN_SRC_COMM_STAGING_H
#define TERN_SRC_COMM_STAGING_H

#include "comm/group.h"

/* Pieces that are posted and not yet finished. */
#define TERN__FLIGHTS 4
/* Of the user's channel: so many that posting never waits. What this rank has retired, every rank has posted,
 * and each of them copies out all but FLIGHTS of what it has posted before it posts more; so the slowest rank
 * has retired all but the last 2 * FLIGHTS. */
#define TERN__FLIGHT_SLOTS (2 * TERN__FLIGHTS)

/* A buffer of the caller's; those of a list are sent one behind the other. */
typedef struct tern__item {
    const char *in; /* the two differ in all_gather, reduce_scatter and moves */
    char *out;
    size_t count; /* elements of one rank */
} tern__item;

struct tern_work {
    tern_work *next;   /* in the queue, until its last piece has landed             */
    tern_group *group; /* NULL once it left the queue                               */
    const char *func;  /* the public call                                           */
    tern__post post;   /* what all its pieces say                                   */
    tern__item item;   /* where it is one                                           */
    const tern__item *items;
    size_t item_count;
    const tern_span *gives, *takes; /* [world] of a move with lists of counts */
    bool is_uncounted;              /* and the others' are not known          */
    size_t count;                   /* elements of one rank                   */
    size_t piece;                   /* elements of one rank in a piece        */
    size_t pieces;                  /* in the ring, posted, done: */
    size_t loaded, started, landed;
    const tern__extent *extents; /* the buffers themselves, or NULL: they travel through the ring */
    int extent_count;
    tern__extent extent;       /* where it is one */
    struct tern__flight *call; /* of the debug back end, or NULL */
    bool is_away;              /* some of its memory is a device's, and crosses the ring */
    tern_device *home;         /* that has all of it, where the back end reaches it      */
    bool is_direct;            /* it does: `extents` are there                           */
    const tern__extent *outs;  /* and in a list of reduce_scatter the results            */
    int status;                /* TERN_PENDING while it is in the queue */
    bool is_transfer;          /* a message: of the above only `group` and `func` count */
    tern__transfer transfer;
};

typedef struct tern__staging tern__staging;

/* Collective. */
tern__staging *tern__staging_open(tern_group *group, tern_error *err);
/* Works that are still in the queue fail. NULL is fine. */
void tern__staging_close(tern__staging *staging);

/* A work for a caller to hold, until tern__work_free. The staging keeps what it is given back for the next
 * one, so warm steps ask for no memory; a work may be freed after its staging. Without one (NULL) it keeps
 * none. */
tern_work *tern__work_new(tern__staging *staging, const char *func, tern_error *err);
void tern__work_free(tern_work *work);
/* Memory for its lists: of a work of tern__work_new, which keeps it. */
void *tern__work_room(tern_work *work, size_t bytes, const char *func, tern_error *err);

/* Parts, one a rank, that what a rank has in a window consists of; else 1. */
size_t tern__staging_parts(const tern_group *group, tern__kind kind);
/* Elements of one rank in a piece of a call that has `count`; 0: nobody knows. */
size_t tern__staging_piece(const tern_group *group, tern__kind kind, tern_dtype dtype, size_t count);
/* So many works were numbered. */
uint64_t tern__staging_calls(const tern__staging *staging);
/* Numbers the work and puts it at the end. */
void tern__staging_push(tern__staging *staging, tern_work *work);
/* Finishes and posts what can be, of any work; never blocks. */
int tern__staging_pump(tern__staging *staging, tern_error *err);
/* Takes a work out that will not be finished. Only after a failure of the group: pieces may be under way. */
void tern__staging_drop(tern__staging *staging, tern_work *work, int status);
/* Blocks until the work is done. It is out of the queue then, whatever the result. */
int tern__staging_finish(tern__staging *staging, tern_work *work, tern_error *err);

#endif
