/* backend.h - what a communication back end is: one const struct of functions, named in registry.c.
 *
 * A back end moves plain buffers. A *window* is memory of the same size on every rank that the back end can
 * reach; a *channel* is an ordered sequence of works: order matters inside one channel, never between two. A
 * work names its data by *extents*, pieces of windows, and is a number: the place in its channel's sequence,
 * counted from 1.
 *
 * All calls come from the group's thread. Every call that can fail fills *err and returns a negative status.
 */
#ifndef TERN_SRC_COMM_BACKEND_H
#define TERN_SRC_COMM_BACKEND_H

#include "base/base.h"

#include <tern/collectives.h>
#include <tern/device.h>
#include <tern/p2p.h>

/* The last five are *moves*, which differ only in who has something for whom: see tern__move. */
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

/* Whose data is combined. */
static inline bool tern__kind_reduces(tern__kind kind)
{
    return kind == TERN__ALL_REDUCE || kind == TERN__REDUCE_SCATTER || kind == TERN__REDUCE;
}

/* The window of a rank's own memory, all of it: offsets are addresses. For back ends that `reach_own`. */
#define TERN__OWN_MEMORY UINT32_MAX

/* The bucket of what is no gradient but a slice of a sharded optimizer; `backward` is its step then. */
#define TERN__SLICE_BUCKET UINT32_MAX

/* A piece of a window: `count` elements of the post's dtype from byte `offset`. */
typedef struct tern__extent {
    uint32_t window;
    uint64_t offset, count;
} tern__extent;

/* What goes between this rank and another, in a move: elements [from, from + count) of the extents. */
typedef struct tern__move {
    void *to; /* of what this rank takes; of what it gives of a device's memory, where that is */
    uint64_t from, count;
} tern__move;

/* What a rank says of a work. It is compared between ranks, the extents too, but not `out` or the moves, nor
 * a weight or share or who is a shadow.
 *
 * What a back end may touch of it, and when: the extents' memory from the moment that all ranks have posted
 * until the work is done, and `out` and what moves go to until then, too. It writes
 *   all_reduce, broadcast, all_gather    all of the extents, on every rank; with `out` nothing of them;
 *   reduce_scatter                       rank r its own part of the extents on rank r; with `out` nothing;
 *   reduce                               the extents on `root` only;
 *   moves                                nothing of the extents, and of each takes[r].to its `count`
 * elements. In an all_gather and a reduce_scatter the extents describe all `world` parts, equal in size; rank
 * r's own stands at place r. A move has one extent or none, on each rank what that one gives; takes[r] says
 * what this rank takes of rank r's extent and where to, gives[r] what rank r takes of this one's, so gives[r]
 * here has the `from` and `count` of takes[me] there. Nobody moves to itself: count is 0 at the own place.
 *
 * A mean to which any rank gives a weight is sum(weight[r] * x[r]) / sum(share[r]), in rank order, in f32
 * (f64 for f64), rounded once; who says nothing has 1 and 1. Memory of weight 0 is not read. Where all
 * weights or all shares are 0 the results stay as they are, and so do those of an all_reduce in which all
 * ranks are idle.
 *
 * A shadow takes part only so that the others can go on: its `backward` and `folded` are not compared, and
 * where it is the root of a broadcast, the highest rank that is no shadow gives the data, or nobody. */
typedef struct tern__post {
    tern__kind kind;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
    const int *roots; /* [extent_count] root of each extent, of a broadcast in a device's memory; borrowed
                       * like the extents. NULL: all are the root's. Not compared */
    uint32_t owner;   /* which user of the channel: a ddp's number, 0 for the user's own collectives */
    uint32_t bucket;  /* and for a ddp: bucket, backward number and microbatches folded into it      */
    uint64_t backward;
    uint32_t folded; /* of the user's own: a digest of a list's counts, 0 if it is no list            */
    uint64_t total;  /* elements of the call that this work is a piece of; 0: those in the extents     */
    const tern__extent *extents; /* borrowed until the work is done */
    int extent_count;
    bool own_places; /* where the extents are is each rank's own affair: only their counts are compared */
    void *out; /* NULL: results go to the extents. Else to this memory of the rank's own, which may be their
                * place in the extents; the back end then writes nothing in the extents that a peer may read.
                * Not of an all_reduce */
    const tern__extent *outs; /* [extent_count] of a reduce_scatter in devices' memory: the same for each
                               * extent; NULL: as `out` says                                          */
    uint64_t stride;          /* of an all_gather to `out`: elements from one rank's part to the next there */
    char *kept; /* of an all_reduce, where the back end `keeps_parts`: this rank's part (tern__kept_start) is
                 * read and written at the same offset from here, not in the extent; NULL: in the extent */
    const tern__move *takes, *gives; /* [world] of a move, borrowed until the work is done           */
    bool wait_all; /* of a monitored barrier: who waits in vain names all that are missing         */
    bool weighted; /* the two below count. Only of a mean, or of TERN_PREMUL_SUM: sum(weight[r] * x[r]) */
    double weight; /* finite                                                                     */
    double share;  /* finite, not negative                                                       */
    bool counted;  /* weights are counts, of any size: what is multiplied by them may not be one of 16 bits.
                    * All ranks say so, or none                                                  */
    bool shadow;
    bool
        idle; /* this rank wants no result, and gives what it has where another wants one; so does a shadow */
    bool is_vote;    /* of tern_group_new or tern_group_split, for its name */
    bool only_meets; /* the ranks say and compare all this, and wait for each other: no memory is touched */
} tern__post;

/* Where the part of `rank` begins, of a work of `count` elements of which each rank keeps its part: whole
 * cache lines of the extent. */
static inline uint64_t tern__kept_start(uint64_t count, tern_dtype dtype, int parts, int rank)
{
    uint64_t line = TERN__LINE / tern_dtype_bytes(dtype),
             each = (count + (uint64_t)parts - 1) / (uint64_t)parts;
    return TERN__MIN((uint64_t)rank * tern__align_up(each, line), count);
}

/* What the ranks have said of a work. */
typedef struct tern__tally {
    const bool *shadow;   /* [world]                                                   */
    int shadows;          /* how many                                                  */
    bool idle;            /* no rank wanted a result, and nothing was touched          */
    double shares;        /* their sum; of a mean of 0 the results are as they were    */
    const double *weight; /* [world] of a weighted mean; NULL: every one is 1          */
} tern__tally;

/* ---- messages between two ranks ---- */

/* What a message is: the caller's own data, or a string of bytes, whose length goes before it. */
typedef enum tern__form { TERN__FORM_DATA, TERN__FORM_LENGTH, TERN__FORM_BYTES } tern__form;

#define TERN__TOKEN 128 /* bytes */

/* A message that this rank sends or receives. The caller holds it at one address while it is pending. */
typedef struct tern__transfer {
    bool is_recv;
    tern__form form; /* compared between the two ranks, as are dtype and count */
    int peer;        /* of the group; of a receive also TERN_ANY_SOURCE         */
    int tag;
    tern_dtype dtype;
    size_t count;
    char *buf;
    char *home; /* in a device's memory, of which `buf` is a copy then; NULL: it is the caller's own */
    /* Set where a back end in front can move the data itself. place: identifies the memory, not 0. If both
     * sides have one and they differ, the TERN__TOKEN bytes are sent in place of the data. */
    uint32_t place;
    char *token;
    void (*fetch)(struct tern__transfer *transfer); /* fills `buf` before it goes over after all */
    bool is_apart;                                  /* the token is sent                         */
    uint64_t ended; /* the place of one that is done among all of its mailbox */
    int status;     /* TERN_PENDING until it is done; E_STATE if its mailbox was closed before */
    int source;     /* of a receive that is done: where it came from                           */
    /* The back end's: */
    struct tern__transfer *next;
    uint64_t serial;
    size_t moved; /* bytes */
} tern__transfer;

/* ---- the struct ---- */

typedef struct tern__comm_backend {
    const char *name;
    bool keeps_parts;      /* it knows of a post's `kept` */
    bool lands_in_windows; /* results go to the extents: `out` is never given, nor a window of the caller's
                            * that is only read */

    /* State of one group; blocks until all ranks have called it. */
    void *(*open)(tern_group *group, tern_error *err);
    void (*close)(void *state);

    /* Collective. `base` NULL: fresh zeroed memory. Otherwise `base` is a page-aligned range of `bytes` (a
     * multiple of the page size) of this process whose address and contents stay, while its pages become
     * reachable by the peers. */
    int (*window_open)(void *state, void *base, size_t bytes, uint32_t *window, tern_error *err);
    /* NULL: devices' memory is out of its reach. Collective with the first call for a device: a window over
     * all of its memory. Extents in it are each rank's own, and not compared but for their counts; of an
     * all_gather or a reduce_scatter each has all ranks' parts. A `base`
     * in a device's memory is for these back ends only, and need not be whole pages. */
    int (*window_of)(void *state, tern_device *device, uint32_t *window, tern_error *err);
    void *(*window_base)(void *state, uint32_t window);
    /* The memory of a `rank` as this one sees it. */
    char *(*window_peer)(void *state, uint32_t window, int rank);
    /* Gives the peers' views back; a `base` of the caller's keeps its contents. Not collective: the caller
     * makes sure that no work still uses it. */
    void (*window_close)(void *state, uint32_t window);
    /* NULL: it does not. Can extents of an all_reduce, a reduce or a broadcast be in TERN__OWN_MEMORY? The
     * same on all ranks. */
    bool (*reach_own)(void *state);

    /* Collective. `slots` works may be in flight: choose more than one backward posts, so that post never
     * waits. */
    void *(*channel_open)(void *state, int slots, tern_error *err);
    /* NULL: all channels are so. Collective, before its first work: works in devices' memory keep an order of
     * their own in this channel, as those of the host's memory do in each, whatever other channels are asked.
     */
    int (*channel_part)(void *channel, tern_error *err);
    /* NULL: nothing is to be made ready. Collective, once a window: its data will go over in this channel's
     * works. Again it does nothing. */
    int (*channel_attach)(void *channel, uint32_t window, tern_error *err);
    void (*channel_close)(void *channel);

    /* *seq = the work's place. Does not wait for peers' compute while fewer than `slots` works are in flight.
     */
    int (*post)(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
    /* Does what can be done now, for any rank's works; never blocks. TERN_OK or an error. */
    int (*progress)(void *channel, tern_error *err);
    /* NULL: there is nothing. What of it waits for others while this rank waits in the back end behind; never
     * blocks. */
    int (*advance)(void *state, tern_error *err);
    /* TERN_OK, TERN_PENDING or an error; progresses; never blocks. */
    int (*test)(void *channel, uint64_t seq, tern_error *err);
    /* Blocks until `seq` and all before it are done, or an error. */
    int (*wait)(void *channel, uint64_t seq, tern_error *err);
    /* The channel's user (a ddp) has begun its `backward`th, and posts nothing of the last `folded`. That is
     * said to peers that wait in vain. */
    void (*mark)(void *channel, uint64_t backward, uint32_t folded);
    /* Of a work that is done; valid until this rank has posted `slots` more. The same on all ranks. */
    const tern__tally *(*tally)(void *channel, uint64_t seq);

    /* A rank's messages of one group. Not collective: opened with the first. A back end of one rank, which
     * has nobody to send to, has none of these six. */
    void *(*mailbox_open)(void *state, tern_error *err);
    /* What is pending gets E_STATE, and the peers are told. */
    void (*mailbox_close)(void *mailbox);
    /* Takes a transfer, pending or, if that can be, done already; never blocks. */
    int (*start)(void *mailbox, tern__transfer *transfer, tern_error *err);
    /* Moves messages on, works of channels too; never blocks. */
    int (*carry)(void *mailbox, tern_error *err);
    /* Blocks until the transfer is done. */
    int (*await)(void *mailbox, const tern__transfer *transfer, tern_error *err);
    /* Forgets a transfer. Only after a failure of the group: the message may be half over. */
    void (*drop)(void *mailbox, tern__transfer *transfer);
} tern__comm_backend;

extern const tern__comm_backend tern__comm_native;
extern const tern__comm_backend tern__comm_self;
extern const tern__comm_backend tern__comm_debug; /* stands before the group's `behind` */
extern const tern__comm_backend tern__comm_hosts;
extern const tern__comm_backend tern__comm_nccl; /* stands before the group's `second` */

/* ---- post.c ---- */

/* E_INVALID for weights of anything but a mean, E_RANGE for a weight or share that is no number of its kind.
 */
int tern__post_check(const tern__post *post, tern_error *err);

/* ---- registry.c ---- */

/* Gives the group the back end that its options ask for, or else that its ranks need. E_UNSUPPORTED: hosts
 * that it does not join. */
int tern__comm_pick(tern_group *group, tern_error *err);
/* Puts the debug back end before the group's, and NCCL's before that, if its options say so; and says what
 * the user sees as its name. */
void tern__comm_fronts_add(tern_group *group);
/* Is there a back end of that name (NULL: any)? E_INVALID. */
int tern__comm_check(const char *name, const char *func, tern_error *err);

#endif
