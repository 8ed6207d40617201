/* piece.h - a staging from inside: its pieces, and what they carry between the callers' memory and the ring.
 */
#ifndef TERN_SRC_COMM_PIECE_H
#define TERN_SRC_COMM_PIECE_H

#include "comm/ferry.h"
#include "comm/staging.h"

/* Elements [first, first + count) of a work. Piece i of the staging uses place i of the ring. */
typedef struct tern__piece {
    tern_work *work;
    uint64_t seq;
    size_t first, count;
    tern__extent extent;       /* in the ring, or, where the back end can, in the caller's memory */
    tern__move *takes, *gives; /* [world] of the staging's */
} tern__piece;

/* What a rank says to another of a move with lists of counts. */
typedef struct tern__counts {
    uint64_t gives, takes; /* to and from the other                      */
    uint64_t most;         /* that it gives to anyone but itself         */
    uint64_t has_home;     /* not 0: its memory is on a device (direct.h) */
} tern__counts;

struct tern__staging {
    tern_group *group;
    uint32_t window;
    char *ring;
    size_t place_bytes; /* of a place in it */
    tern__fleet fleet;  /* of the devices whose memory crosses the ring */
    tern__piece pieces[TERN__FLIGHTS];
    uint64_t loaded, started, landed; /* pieces so far: in the ring, posted, and done */
    uint64_t calls;
    tern_work *first, *last;         /* the queue                                     */
    tern_work *next;                 /* of which pieces are loaded next, or NULL      */
    struct tern__held *held, *spare; /* by callers; given back                        */
    tern__move *moves;               /* [FLIGHTS][2][world]                           */
    tern__counts *counts;            /* [world] of the work whose counts are exchanged */
};

/* The next one of `work`, with what this rank gives in its place of the ring, or on the way there. */
int tern__piece_load(tern__staging *staging, tern__piece *piece, tern_work *work, tern_error *err);
/* What it says when that is there. */
tern__post tern__piece_post(const tern__staging *staging, const tern__piece *piece);
/* Its results to the caller, once it is done. */
int tern__piece_unload(tern__staging *staging, const tern__piece *piece, tern_error *err);

/* ---- the memory of devices, of which a work `is_away` ---- */

/* Finds out, and lets the copies follow the step. E_UNSUPPORTED beside a window. */
int tern__work_depart(tern__staging *staging, tern_work *work, tern_error *err);
/* Lets the step follow the copies. */
int tern__work_return(tern__staging *staging, const tern_work *work, tern_error *err);

#endif
