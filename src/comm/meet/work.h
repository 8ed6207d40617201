/* work.h - a work: one collective under way, as its ranks state it to each other. */
#ifndef TERN_SRC_COMM_MEET_WORK_H
#define TERN_SRC_COMM_MEET_WORK_H

#include "comm/group.h"

/* The kinds of works. The last five are *moves*: they differ only in who gives what to whom (tern__move).
 */
typedef enum tern__kind {
    TERN__ALL_REDUCE,
    TERN__BROADCAST,
    TERN__ALL_GATHER,
    TERN__REDUCE_SCATTER,
    TERN__BARRIER,
    TERN__MONITORED_BARRIER,
    TERN__REDUCE,
    TERN__GATHER,
    TERN__SCATTER,
    TERN__ALL_TO_ALL,
    TERN__ALL_GATHER_V,
    TERN__ALL_TO_ALL_V
} tern__kind;

static inline bool tern__kind_is_move(tern__kind kind)
{
    return kind >= TERN__GATHER;
}

/* True for works that combine the ranks' data. */
static inline bool tern__kind_reduces(tern__kind kind)
{
    return kind == TERN__ALL_REDUCE || kind == TERN__REDUCE_SCATTER || kind == TERN__REDUCE;
}

/* True for works whose result replaces their input, on some or all ranks. */
static inline bool tern__kind_is_in_place(tern__kind kind)
{
    return kind == TERN__ALL_REDUCE || kind == TERN__REDUCE || kind == TERN__BROADCAST;
}

/* A window over all memory of a rank's own, whose offsets are addresses. For groups whose back end
 * `reaches_own`, and for works that it `carries`. */
#define TERN__OWN_MEMORY UINT32_MAX

/* What the caller of a work says of it: for errors and the timeline. It is compared between the ranks, and
 * means nothing here. */
typedef struct tern__label {
    const struct tern__label_kind *kind; /* NULL: a collective that the user has called */
    uint32_t user, part;                 /* a ddp's number, its bucket */
    /* Not compared of a rank that is a shadow. In the user's collectives: a digest of a list's counts, 0 if
     * it is not a list; and the number of the call. */
    uint32_t detail;
    uint64_t number;
} tern__label;

/* Where a rank is that has not come to a work. */
typedef enum tern__elsewhere {
    TERN__ELSEWHERE_UNKNOWN,
    TERN__ELSEWHERE_LEFT, /* it has closed the group, or the channel */
    TERN__ELSEWHERE_WAITS /* it waits in another call */
} tern__elsewhere;

/* What one part of tern says with its labels. */
typedef struct tern__label_kind {
    uint32_t id;               /* from 1 on; the same in all processes */
    bool has_shadows;          /* some ranks may be shadows in its works */
    const char *left;          /* what a rank has done that has closed its channel: "freed its ddp" */
    const char *part, *number; /* names of the two in the timeline; NULL: not shown */
    /* Writes "(ddp 1, backward 3, bucket 0, 1 folded)". */
    void (*text)(const tern__label *label, char *text, size_t size);
    /* Returns why two works of this kind differ: "; one was in no_sync ..", or "". */
    const char *(*differ)(const tern__label *one, const tern__label *other);
    /* `rank` has not come to the work of `label`; `noted` is what it said last of itself (channel_note).
     * Writes ": rank 1 has done 12 backwards", or "". NULL: nothing is known. */
    void (*hint)(const tern__label *label, int rank, const tern__label *noted, tern__elsewhere where,
                 char *text, size_t size);
} tern__label_kind;

/* Makes a kind known, so that this process can describe other ranks' works of it. Call it before the first.
 */
void tern__label_kind_add(const tern__label_kind *kind);

/* A piece of a window: `count` elements of the post's dtype from byte `offset`. */
typedef struct tern__extent {
    uint32_t window;
    uint64_t offset, count;
} tern__extent;

/* The elements [from, from + count) of the extents that a move transfers between this rank and another. */
typedef struct tern__move {
    void *to; /* where received elements go; for sent ones in a device's memory, where they are */
    uint64_t from, count;
} tern__move;

/* The terms on which a rank takes part in a work. They may differ between ranks.
 *
 * Weighted mean: if any rank gives a weight, the mean is sum(weight[r] * x[r]) / sum(share[r]), in rank
 * order, in f32 (f64 for f64), rounded once. A rank that gives none counts with weight 1 and share 1.
 * Memory with weight 0 is not read. If all weights or all shares are 0, results stay unchanged; so do those
 * of an all_reduce in which all ranks are idle.
 *
 * Shadow: a rank that takes part only so that the other ranks can go on (PyTorch's Join). Not all of its
 * label is compared. If it is the root of a broadcast, the highest rank that is not a shadow gives the data
 * instead, if there is one. */
typedef struct tern__terms {
    bool weighted; /* weight and share are set; for a mean, or TERN_PREMUL_SUM: sum(weight[r] * x[r]) */
    bool counted;  /* weights are counts of any size: do not multiply 16-bit values by them. The same on all
                      ranks */
    bool shadow;
    bool idle;     /* this rank needs no result, but gives its data if another rank does; so does a shadow */
    double weight; /* finite */
    double share;  /* finite, not negative */
} tern__terms;

/* What a rank posts to take part in a work. Ranks must post the same: the back end compares all of it,
 * extents included, except `out`, the moves and the terms, and where the extent of a placed work is.
 *
 * Memory: the back end may touch the extents from the moment when all ranks have posted until the work is
 * done, and `out` and the moves' destinations until the work is done. It writes
 *
 *     all_reduce, broadcast, all_gather   all of the extents, on every rank; nothing in them if `out` is set
 *     reduce_scatter                      on rank r, part r of the extents; nothing in them if `out` is set
 *     reduce                              the extents on `root` only
 *     moves                               nothing in the extents, and `count` elements at each takes[r].to
 *
 * In an all_gather and a reduce_scatter the extents hold all `world` parts, which have equal sizes; rank
 * r's part is part r. A move has one extent or none: the data that the rank gives. takes[r] says what this
 * rank takes from rank r's extent, and where it goes; gives[r] says what rank r takes from this rank's
 * extent, so its `from` and `count` are those of takes[me] on rank r. A rank moves nothing to itself: its
 * own `count` is 0. */
typedef struct tern__post {
    tern__kind kind;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
    const int *roots; /* [extent_count] each extent's root, in a broadcast in a device's memory; borrowed like
                       * the extents. NULL: `root` for all. Not compared */
    tern__label label;
    tern__terms terms;
    uint64_t total; /* elements of the call of which this work is a piece; 0: those in the extents */
    const tern__extent *extents; /* borrowed until the work is done */
    int extent_count;
    uint32_t table_window;
    uint64_t table_offset;
    void *out; /* memory of this rank for the results, possibly its part of the extents; the back end then
                * writes nothing in the extents that a peer may read. NULL: the extents. Not in an
                * all_reduce */
    const tern__extent *outs; /* [extent_count] the same for each extent of a reduce_scatter in devices'
                               * memory; NULL: see `out` */
    uint64_t stride;          /* in an all_gather to `out`: elements from one rank's part to the next */
    char *kept; /* in an all_reduce, if the back end `keeps_parts`: this rank's part (tern__kept_start) is
                 * read and written here, at the same offset, and not in the extent. NULL: in the extent */
    const tern__move *takes, *gives; /* [world] in a move; borrowed until the work is done */
    bool wait_all;   /* in a monitored barrier: an error names all missing ranks, not the first */
    bool is_vote;    /* of tern_group_new or tern_group_split: named so in errors */
    bool only_meets; /* ranks compare their posts and wait for each other, and touch no memory */
    bool is_placed;  /* the extents may be in another window and at another offset on each rank: only their
                      * counts are compared. The descriptor says where the only one is */
    bool has_table; /* of a placed list: the back end writes all extents to the table, which is memory of this
                      * rank that the peers reach, and the descriptor says where the table is */
} tern__post;

/* Returns the first of `count` elements that belongs to a rank's part, in a work whose parts the ranks keep
 * (`kept`). Parts are whole cache lines of the extent. */
static inline uint64_t tern__kept_start(uint64_t count, tern_dtype dtype, int parts, int rank)
{
    uint64_t line = TERN__LINE / tern_dtype_bytes(dtype),
             each = (count + (uint64_t)parts - 1) / (uint64_t)parts;
    return TERN__MIN((uint64_t)rank * tern__align_up(each, line), count);
}

/* What the ranks have posted, once a work is done. */
typedef struct tern__tally {
    const bool *shadow;   /* [world] */
    int shadows;          /* number of shadows */
    bool idle;            /* no rank needed a result, and no memory was touched */
    double shares;        /* sum of the shares; if 0, a mean's results are unchanged */
    const double *weight; /* [world] in a weighted mean; NULL: all are 1 */
} tern__tally;

/* ---- describe.c ---- */

/* Checks a post. E_INVALID: weights without a mean. E_RANGE: a weight or share that is not finite, or a
 * negative share. */
int tern__post_check(const tern__post *post, tern_error *err);

#endif
