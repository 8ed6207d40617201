/* backend.h - the interface of a communication back end: one const struct of functions, listed in registry.c.
 *
 * A back end moves plain buffers. A *window* is memory of the same size on every rank that the back end can
 * reach. A *channel* is an ordered sequence of works: order matters within a channel, never between two. A
 * *work* is one collective under way. Its data are *extents*, pieces of windows; its number is its position
 * in the channel's sequence, counted from 1.
 *
 * All calls come from the group's thread. A call that can fail fills *err and returns a negative status. */
#ifndef TERN_SRC_COMM_MOVE_BACKEND_H
#define TERN_SRC_COMM_MOVE_BACKEND_H

#include "base/base.h"

#include <tern/collectives.h>
#include <tern/device.h>
#include <tern/p2p.h>

/* The kinds of works. The last five are *moves*: they differ only in who gives what to whom (tern__move). */
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

/* A window over all memory of a rank's own, whose offsets are addresses. For back ends that `reach_own`. */
#define TERN__OWN_MEMORY UINT32_MAX

/* The bucket number of a sharded optimizer's slice, whose `backward` is the optimizer's step. */
#define TERN__SLICE_BUCKET UINT32_MAX

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

/* What a rank posts to take part in a work. Ranks must post the same: the back end compares all of it,
 * extents included, except `out`, the moves, weight, share and shadow.
 *
 * Memory: the back end may touch the extents from the moment when all ranks have posted until the work is
 * done, and `out` and the moves' destinations until the work is done. It writes
 *
 *     all_reduce, broadcast, all_gather   all of the extents, on every rank; nothing in them if `out` is set
 *     reduce_scatter                      on rank r, part r of the extents; nothing in them if `out` is set
 *     reduce                              the extents on `root` only
 *     moves                               nothing in the extents, and `count` elements at each takes[r].to
 *
 * In an all_gather and a reduce_scatter the extents hold all `world` parts, which have equal sizes; rank r's
 * part is part r. A move has one extent or none: the data that the rank gives. takes[r] says what this rank
 * takes from rank r's extent, and where it goes; gives[r] says what rank r takes from this rank's extent, so
 * its `from` and `count` are those of takes[me] on rank r. A rank moves nothing to itself: its own `count` is
 * 0.
 *
 * Weighted mean: if any rank gives a weight, the mean is sum(weight[r] * x[r]) / sum(share[r]), in rank
 * order, in f32 (f64 for f64), rounded once. A rank that gives none counts with weight 1 and share 1. Memory
 * with weight 0 is not read. If all weights or all shares are 0, results stay unchanged; so do those of an
 * all_reduce in which all ranks are idle.
 *
 * Shadow: a rank that takes part only so that the other ranks can go on. Its `backward` and `folded` are not
 * compared. If it is the root of a broadcast, the highest rank that is not a shadow gives the data instead,
 * if there is one. */
typedef struct tern__post {
    tern__kind kind;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
    const int *roots; /* [extent_count] each extent's root, in a broadcast in a device's memory; borrowed like
                       * the extents. NULL: `root` for all. Not compared */
    uint32_t owner;   /* a ddp's number; 0: a collective that the user has called */
    uint32_t bucket;  /* a ddp's bucket, backward number and microbatches folded into it */
    uint64_t backward;
    uint32_t folded; /* in the user's collectives: a digest of a list's counts, 0 if it is not a list */
    uint64_t total;  /* elements of the call of which this work is a piece; 0: those in the extents */
    const tern__extent *extents; /* borrowed until the work is done */
    int extent_count;
    bool own_places; /* extents may be at different offsets on each rank: only counts are compared */
    void *out; /* memory of this rank for the results, possibly its part of the extents; the back end then
                * writes nothing in the extents that a peer may read. NULL: the extents. Not in an
                * all_reduce */
    const tern__extent *outs; /* [extent_count] the same for each extent of a reduce_scatter in devices'
                               * memory; NULL: see `out` */
    uint64_t stride;          /* in an all_gather to `out`: elements from one rank's part to the next */
    char *kept; /* in an all_reduce, if the back end `keeps_parts`: this rank's part (tern__kept_start) is
                 * read and written here, at the same offset, and not in the extent. NULL: in the extent */
    const tern__move *takes, *gives; /* [world] in a move; borrowed until the work is done */
    bool wait_all; /* in a monitored barrier: an error names all missing ranks, not the first */
    bool weighted; /* weight and share are set; for a mean, or TERN_PREMUL_SUM: sum(weight[r] * x[r]) */
    double weight; /* finite */
    double share;  /* finite, not negative */
    bool counted;  /* weights are counts of any size: do not multiply 16-bit values by them. The same on all
                      ranks */
    bool shadow;
    bool idle;    /* this rank needs no result, but gives its data if another rank does; so does a shadow */
    bool is_vote; /* of tern_group_new or tern_group_split: named so in errors */
    bool only_meets; /* ranks compare their posts and wait for each other, and touch no memory */
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

/* ---- messages between two ranks ---- */

/* The form of a message: the caller's data, or a string of bytes that is preceded by its length. */
typedef enum tern__form { TERN__FORM_DATA, TERN__FORM_LENGTH, TERN__FORM_BYTES } tern__form;

#define TERN__TOKEN 128 /* bytes */

/* A message that this rank sends or receives. The caller keeps it at one address while it is pending. */
typedef struct tern__transfer {
    bool is_recv;
    tern__form form; /* compared between the two ranks, as are dtype and count */
    int peer;        /* rank in the group; in a receive also TERN_ANY_SOURCE */
    int tag;
    tern_dtype dtype;
    size_t count;
    char *buf;
    char *home; /* the data in a device's memory, of which `buf` is a copy; NULL: `buf` is the data */
    /* Set if a back end in front can move the data itself. `place` identifies the memory and is not 0. If
     * both sides have one and they differ, TERN__TOKEN bytes are sent in place of the data. */
    uint32_t place;
    char *token;
    void (*fetch)(struct tern__transfer *transfer); /* fills `buf`, if the data is sent after all */
    bool is_apart;                                  /* the token was sent, not the data */
    uint64_t ended; /* once done: its number among the mailbox's completed transfers */
    int status;     /* TERN_PENDING until done; E_STATE if its mailbox was closed before */
    int source;     /* the sender, once a receive is done */
    /* The back end's: */
    struct tern__transfer *next;
    uint64_t serial;
    size_t moved; /* bytes */
} tern__transfer;

/* ---- the struct ---- */

typedef struct tern__comm_backend {
    const char *name;
    bool keeps_parts;      /* supports a post's `kept` */
    bool lands_in_windows; /* results must go to the extents: `out` is never set, and no window of the
                            * caller's is only read */

    /* Opens the state of a group. Blocks until all ranks have called it. */
    void *(*open)(tern_group *group, tern_error *err);
    void (*close)(void *state);

    /* Opens a window. Collective. If `base` is NULL it is new, zeroed memory. Otherwise `base` is a
     * page-aligned range of this process, `bytes` a multiple of the page size: address and contents stay, and
     * the peers can reach its pages from now on. */
    int (*window_open)(void *state, void *base, size_t bytes, uint32_t *window, tern_error *err);
    /* Returns a window over all memory of a device. Collective at the first call for a device. Extents in it
     * may be at different offsets on each rank: only their counts are compared; in an all_gather or a
     * reduce_scatter each holds all ranks' parts. Only back ends that have this function take a `base` in a
     * device's memory, and it need not be whole pages. NULL: the back end cannot reach devices' memory. */
    int (*window_of)(void *state, tern_device *device, uint32_t *window, tern_error *err);
    void *(*window_base)(void *state, uint32_t window);
    /* Returns a rank's memory as this process sees it. */
    char *(*window_peer)(void *state, uint32_t window, int rank);
    /* Unmaps the peers' memory; a caller's `base` keeps its contents. Not collective: the caller makes sure
     * that no work still uses the window. */
    void (*window_close)(void *state, uint32_t window);
    /* True if extents of an all_reduce, a reduce or a broadcast may be in TERN__OWN_MEMORY; the same on all
     * ranks. NULL: never. */
    bool (*reach_own)(void *state);

    /* Opens a channel. Collective. `slots` works may be in flight; choose more than a backward posts, so that
     * post never waits. */
    void *(*channel_open)(void *state, int slots, tern_error *err);
    /* Gives the channel an order of its own for works in devices' memory, as every channel has for works in
     * host memory. Collective, before its first work. NULL: every channel has one. */
    int (*channel_part)(void *channel, tern_error *err);
    /* Prepares a window whose data this channel's works will move. Collective; a second call for the same
     * window does nothing. NULL: no preparation is needed. */
    int (*channel_attach)(void *channel, uint32_t window, tern_error *err);
    void (*channel_close)(void *channel);

    /* Posts a work and sets *seq to its number. While fewer than `slots` works are in flight, it does not
     * wait for peers. */
    int (*post)(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
    /* Does what can be done now, for works of any rank. Never blocks. Returns TERN_OK or an error. */
    int (*progress)(void *channel, tern_error *err);
    /* Advances works that wait for other ranks, while this rank waits in the back end behind. Never blocks.
     * NULL: there is nothing to advance. */
    int (*advance)(void *state, tern_error *err);
    /* Returns TERN_OK if the work is done, TERN_PENDING, or an error. Makes progress, and never blocks. */
    int (*test)(void *channel, uint64_t seq, tern_error *err);
    /* Blocks until `seq` and all works before it are done, or until an error. */
    int (*wait)(void *channel, uint64_t seq, tern_error *err);
    /* Notes that the channel's user (a ddp) has begun backward number `backward`, and that the `folded` ones
     * before it post nothing. Errors of ranks that time out quote it. */
    void (*mark)(void *channel, uint64_t backward, uint32_t folded);
    /* Returns the tally of a work that is done; the same on all ranks. Valid until this rank has posted
     * `slots` more works. */
    const tern__tally *(*tally)(void *channel, uint64_t seq);

    /* Opens the mailbox of a rank's messages in one group, at the first message; not collective. A back end
     * for one rank, which has no peer, has none of these six functions. */
    void *(*mailbox_open)(void *state, tern_error *err);
    /* Ends pending transfers with E_STATE, and tells the peers. */
    void (*mailbox_close)(void *mailbox);
    /* Starts a transfer; it may be done at once. Never blocks. */
    int (*start)(void *mailbox, tern__transfer *transfer, tern_error *err);
    /* Advances messages, and works of channels. Never blocks. */
    int (*carry)(void *mailbox, tern_error *err);
    /* Blocks until the transfer is done. */
    int (*await)(void *mailbox, const tern__transfer *transfer, tern_error *err);
    /* Forgets a transfer, which may be half done. Only after a failure of the group. */
    void (*drop)(void *mailbox, tern__transfer *transfer);
} tern__comm_backend;

extern const tern__comm_backend tern__comm_native;
extern const tern__comm_backend tern__comm_self;
extern const tern__comm_backend tern__comm_debug; /* in front of the group's `behind` */
extern const tern__comm_backend tern__comm_hosts;
extern const tern__comm_backend tern__comm_nccl; /* in front of the group's `second` */

/* ---- post.c ---- */

/* Checks a post. E_INVALID: weights without a mean. E_RANGE: a weight or share that is not finite, or a
 * negative share. */
int tern__post_check(const tern__post *post, tern_error *err);

/* ---- registry.c ---- */

/* Gives the group the back end of boot.choice, with the debug back end in front of it, and NCCL's in front of
 * that, if its name says so. Sets both names. E_UNSUPPORTED: it cannot join the group's hosts. */
int tern__comm_pick(tern_group *group, tern_error *err);
/* Returns E_INVALID if there is no back end of that name. NULL is valid: it stands for any. */
int tern__comm_check(const char *name, const char *func, tern_error *err);

#endif
