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

#include <tern/comm.h>

typedef enum tern__kind {
    TERN__ALL_REDUCE,
    TERN__BROADCAST,
    TERN__ALL_GATHER,
    TERN__REDUCE_SCATTER,
    TERN__BARRIER
} tern__kind;

/* The bucket of what is no gradient but a slice of a sharded optimizer; `backward` is its step then. */
#define TERN__SLICE_BUCKET UINT32_MAX

/* A piece of a window: `count` elements of the post's dtype from byte `offset`. */
typedef struct tern__extent {
    uint32_t window;
    uint64_t offset, count;
} tern__extent;

/* What a rank says of a work. It is compared between ranks, the extents too, but not `out`, nor a weight or
 * share or who is a shadow. In an all_gather and a reduce_scatter the extents describe all `world` parts,
 * equal in size; rank r's own stands at place r.
 *
 * A mean to which any rank gives a weight is sum(weight[r] * x[r]) / sum(share[r]), in rank order, in f32
 * (f64 for f64), rounded once; who says nothing has 1 and 1. Memory of weight 0 is not read. Where all
 * weights or all shares are 0 the results stay as they are.
 *
 * A shadow takes part only so that the others can go on: its `backward` and `folded` are not compared, and
 * where it is the root of a broadcast, the highest rank that is no shadow gives the data, or nobody. */
typedef struct tern__post {
    tern__kind kind;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
    uint32_t owner;  /* which user of the channel: a ddp's number, 0 for the user's own collectives */
    uint32_t bucket; /* and for a ddp: bucket, backward number and microbatches folded into it      */
    uint64_t backward;
    uint32_t folded;
    uint64_t total; /* elements of the call that this work is a piece of; 0: those in the extents     */
    const tern__extent *extents; /* borrowed until the work is done */
    int extent_count;
    void *out;       /* NULL: the result goes to the extents. Else to this memory of the rank's own, and the
                      * extents are only read. Not of an all_reduce                                          */
    uint64_t stride; /* of an all_gather to `out`: elements from one rank's part to the next there */
    bool weighted;   /* the two below count. Only of a mean (TERN_AVG)                             */
    double weight;   /* finite                                                                     */
    double share;    /* finite, not negative                                                       */
    bool shadow;
} tern__post;

/* What the ranks have said of a work. */
typedef struct tern__tally {
    const bool *shadow; /* [world]                                                     */
    int shadows;        /* how many                                                    */
    double shares;      /* their sum; of a mean of 0 the results are as they were      */
} tern__tally;

typedef struct tern__comm_backend {
    const char *name;

    /* State of one group; blocks until all ranks have called it. */
    void *(*open)(tern_group *group, tern_error *err);
    void (*close)(void *state);

    /* Collective. `base` NULL: fresh zeroed memory. Otherwise `base` is a page-aligned range of `bytes` (a
     * multiple of the page size) of this process whose address and contents stay, while its pages become
     * reachable by the peers. */
    int (*window_open)(void *state, void *base, size_t bytes, uint32_t *window, tern_error *err);
    void *(*window_base)(void *state, uint32_t window);
    /* Gives the peers' views back; a `base` of the caller's keeps its contents. Not collective: the caller
     * makes sure that no work still uses it. */
    void (*window_close)(void *state, uint32_t window);

    /* Collective. `slots` works may be in flight: choose more than one backward posts, so that post never
     * waits. */
    void *(*channel_open)(void *state, int slots, tern_error *err);
    void (*channel_close)(void *channel);

    /* *seq = the work's place. Does not wait for peers' compute while fewer than `slots` works are in flight.
     */
    int (*post)(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
    /* Does what can be done now, for any rank's works; never blocks. TERN_OK or an error. */
    int (*progress)(void *channel, tern_error *err);
    /* TERN_OK, TERN_PENDING or an error; progresses; never blocks. */
    int (*test)(void *channel, uint64_t seq, tern_error *err);
    /* Blocks until `seq` and all before it are done, or an error. */
    int (*wait)(void *channel, uint64_t seq, tern_error *err);
    /* The channel's user (a ddp) has begun its `backward`th, and posts nothing of the last `folded`. That is
     * said to peers that wait in vain. */
    void (*mark)(void *channel, uint64_t backward, uint32_t folded);
    /* Of a work that is done; valid until this rank has posted `slots` more. The same on all ranks. */
    const tern__tally *(*tally)(void *channel, uint64_t seq);
} tern__comm_backend;

extern const tern__comm_backend tern__comm_native;
extern const tern__comm_backend tern__comm_self;

/* ---- post.c ---- */

/* E_INVALID for weights of anything but a mean, E_RANGE for a weight or share that is no number of its kind.
 */
int tern__post_check(const tern__post *post, tern_error *err);

/* ---- registry.c ---- */

/* The back end for a group of `world` ranks on one host. */
const tern__comm_backend *tern__comm_pick(int world);

#endif
