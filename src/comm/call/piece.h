/* piece.h - the internals of a staging: its pieces, and their copies between the callers' memory and the
 * ring. */
#ifndef TERN_SRC_COMM_CALL_PIECE_H
#define TERN_SRC_COMM_CALL_PIECE_H

#include "comm/call/ring_copy.h"
#include "comm/call/staging.h"

/* Elements [first, first + count) of a work. pieces[i] of the staging uses place i of the ring. */
typedef struct tern__piece {
    tern_work *work;
    uint64_t seq;
    size_t first, count;
    char *at;                  /* the place of the ring */
    tern__extent extent;       /* there, or in the caller's memory if the back end can */
    tern__move *takes, *gives; /* [world] in the staging's `moves` */
} tern__piece;

/* The counts that a rank sends to another one, in a move with lists of counts. */
typedef struct tern__counts {
    uint64_t gives, takes; /* elements to and from the other rank */
    uint64_t most;         /* the most that it gives to any other rank */
    uint64_t has_home;     /* not 0: its memory is on a device (direct.c) */
} tern__counts;

struct tern__staging {
    tern_group *group;
    uint32_t window;
    char *ring;
    size_t place_bytes;           /* size of a place, in a multiple of the page size */
    size_t filled[TERN__FLIGHTS]; /* bytes of each place that have pages */
    tern__ring_copies copies;     /* the devices whose memory crosses the ring */
    tern__piece pieces[TERN__FLIGHTS];
    uint64_t loaded, started, landed; /* pieces so far: in the ring, posted, and done */
    uint64_t calls;
    tern_work *first, *last;         /* the queue */
    tern_work *next;                 /* the work whose piece is loaded next, or NULL */
    struct tern__held *held, *spare; /* held by callers; free for reuse */
    tern__move *moves;               /* [FLIGHTS][2][world] */
    tern__counts *counts;            /* [world] the counts that the peers have sent */
};

/* Fills in the next piece of `work`, and copies this rank's data into its place of the ring, or starts to. */
int tern__piece_load(tern__staging *staging, tern__piece *piece, tern_work *work, tern_error *err);
/* Returns the post of a piece whose data is in the ring. */
tern__post tern__piece_post(const tern__staging *staging, const tern__piece *piece);
/* Copies the results of a piece that is done to the caller. */
int tern__piece_unload(tern__staging *staging, tern__piece *piece, tern_error *err);

/* ---- memory of devices: works that are `is_away` ---- */

/* Sets is_away if some memory is a device's, and makes the copies wait for the step. E_UNSUPPORTED: `in` is
 * in a window and `out` on a device. */
int tern__work_depart(tern__staging *staging, tern_work *work, tern_error *err);
/* Makes the step wait for the copies. */
int tern__work_return(tern__staging *staging, const tern_work *work, tern_error *err);

/* ---- direct.c: works that a back end does in a device's memory, without the ring ---- */

/* Either all ranks have their memory on devices, or none has. In a move with lists of counts, a rank may have
 * no data, and so no memory. Such a move goes through the ring unless all ranks say, together with their
 * counts, that their memory is on a device. */

/* Makes a work direct if possible. With lists of counts, it only finds out what this rank will tell the other
 * ranks. */
int tern__direct_begin(tern_work *work, const tern_group *group, tern_error *err);
/* Makes a move with lists of counts direct, once all ranks have said that they can. `most`: the most elements
 * that one rank gives to another. */
int tern__direct_move(tern_work *work, const tern_group *group, uint64_t most, tern_error *err);

#endif
