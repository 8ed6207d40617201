/* ddp.h - the core of tern_ddp: buckets over the sealed gradient ranges, and the reducer that posts them.
 * What single features add to it are its parts (parts.h).
 *
 * The path of a bucket: reducer.c hears that a leaf's gradient is written. When all gradients of a bucket
 * are, it is put: parts may round them, or copy them to where they are reduced. When the parts let it go, it
 * is posted. Any rank that looks at it reduces it in its ranges' windows. When the last work of the backward
 * is done, the parts take the means back to the gradients. */
#ifndef TERN_SRC_PARALLEL_DDP_H
#define TERN_SRC_PARALLEL_DDP_H

#include "comm/move/backend.h"
#include "device/backend.h"
#include "nn/nn.h"
#include "parallel/parts.h"

/* Leaves whose gradients are reduced in one work: neighbours in the order in which backward finishes them. */
typedef struct tern__bucket {
    int first, count; /* a part of ddp->order */
    size_t bytes;
    tern_dtype dtype;
    int waiting;           /* gradients that are still being computed */
    bool used;             /* one of its leaves has a gradient or will get one */
    tern__extent *extents; /* in the gradient windows; the last bucket also has the side values */
    int extent_count;
} tern__bucket;

/* How the gradients of one of the seal's ranges are reduced. */
typedef struct tern__ddp_range {
    tern_dtype dtype;
    char *grads;     /* in this dtype: the seal's range, or what compress.c rounds it to */
    uint32_t window; /* over `grads`; for a range that staging.c copies, host memory with the same layout */
} tern__ddp_range;

/* A round: the backwards up to the next synchronised one, which reduces the gradients that they have
 * accumulated. */
typedef struct tern__ddp_round {
    bool active;                 /* the running backward is synchronised */
    bool is_inside;              /* a backward is running */
    bool used;                   /* the running backward reaches the model on this rank */
    bool reached;                /* so does it, or did an earlier one of this round */
    bool is_idle;                /* no rank's did in the last round, so nothing was reduced */
    int next_put, next_bucket;   /* the first bucket that is not in its window yet; not posted yet */
    int ready_count;             /* in ddp->ready */
    uint64_t backward;           /* the number of the running or last backward */
    uint32_t folded;             /* backwards in the round so far, including the running one */
    uint64_t last_seq, side_seq; /* the last work; the one with the side values */
    double samples;              /* what this rank's gradients count for: 1, or as in normaliser.c */
    double weight, share;        /* of the synchronised backward's posts */
    const tern_tensor *loss;     /* while a backward begins; NULL: this rank is a shadow */
    const tern_scope *scope;     /* of the running or last backward */
    int64_t posted, arrived;     /* ns: when its first bucket (0: none yet) and its last were posted */
    int64_t ended;               /* ns: when all works were done */
} tern__ddp_round;

struct tern_ddp {
    tern__listener listener; /* first: the group's list links these */
    tern_module *module;
    tern_group *group;
    tern__seal *seal;
    tern_ddp_opts opts;
    uint32_t number;
    void *channel;
    struct tern__ddp_owned *owned; /* windows and memory, newest first */
    tern__ddp_hook hooks[TERN__DDP_MOMENTS][TERN__DDP_PARTS + 1];

    tern__ddp_range ranges[TERN__RANGES]; /* of the seal */
    uint32_t side_window;
    tern__extent order_extent;

    bool *ignored;         /* [tern__entry_count] parameters and buffers that each rank keeps for itself */
    int leaf_count;        /* synchronised leaves */
    int *order;            /* [leaf_count] leaf indices in bucket order */
    int *ready;            /* [round.ready_count] leaf indices in the order in which they were ready */
    int *bucket_of;        /* by leaf index; -1: ignored */
    tern__bucket *buckets; /* with room for leaf_count + 2, as their extents */
    tern__extent *extents; /* of all buckets, one array */
    int bucket_count, side_bucket; /* the first bucket with side values */
    bool rebuilt;

    bool sync; /* backwards are synchronised */
    tern__ddp_round round;

    bool shadow;     /* this rank is in tern_ddp_join */
    bool over;       /* all ranks were shadows in the last round */
    int last_active; /* the highest rank that was not a shadow, in the last round that had one */

    /* Each part's own; NULL: the part is off. */
    struct tern__ddp_choices *choices;
    struct tern__ddp_checksum *checksum;
    struct tern__ddp_buffers *buffers;
    struct tern__ddp_staging *staging;
    struct tern__ddp_loss *loss;
    struct tern__straggler *straggler;
    struct tern__stats *stats;
    struct tern__ddp_static_graph *static_graph;
    struct tern__ddp_normaliser *normaliser;
    struct tern__ddp_microbatches *microbatches;
};

/* True if the back end can reach the device's memory. Collectives then work on it directly. */
static inline bool tern__ddp_reaches(const tern_ddp *ddp, const tern_device *device)
{
    return device && device->backend && ddp->group->backend->reaches_devices;
}

/* Returns the device in whose memory gradient range r is reduced; NULL: in the host's. */
static inline tern_device *tern__ddp_home(const tern_ddp *ddp, int r)
{
    tern_device *device = ddp->seal->ranges[r].device;
    return tern__ddp_reaches(ddp, device) ? device : NULL;
}

/* ---- ddp.c ---- */

/* Allocates zeroed memory of the host (device NULL), or memory of a device. tern_ddp_free frees it, newest
 * first, after the parts have closed. */
void *tern__ddp_alloc(tern_ddp *ddp, tern_device *device, size_t bytes, tern_error *err);
/* Opens a window of the group's back end. tern_ddp_free closes it likewise. */
int tern__ddp_window_open(tern_ddp *ddp, void *base, size_t bytes, uint32_t *window, tern_error *err);
/* Opens a window of zeroed host memory for one extent. */
int tern__ddp_extent_open(tern_ddp *ddp, tern_dtype dtype, uint64_t count, tern__extent *extent,
                          tern_error *err);
static inline void *tern__ddp_window_base(const tern_ddp *ddp, uint32_t window)
{
    return tern__window_own(ddp->group, window);
}

/* Iterate over the ddps of the group's family in this process, in the order in which they were made; NULL at
 * the end. They take part in every backward on the family's scopes. */
tern_ddp *tern__ddp_first(const tern_group *group);
tern_ddp *tern__ddp_next(const tern_ddp *ddp);

/* ---- post.c ---- */

extern const tern__label_kind tern__ddp_label;

/* Posts a work of the running backward, for a bucket (bucket_count: for all): labels it and sets
 * round.last_seq. */
int tern__ddp_post(tern_ddp *ddp, tern__post *work, int bucket, tern_error *err);
/* Posts a work that is for all buckets. A broadcast is of rank 0's bytes, or, if rank 0 is a shadow, of those
 * of the highest rank that is not. */
int tern__ddp_post_all(tern_ddp *ddp, tern__kind kind, tern_dtype dtype, const tern__extent *extents,
                       int count, tern_error *err);
/* Waits for all works that were posted. */
int tern__ddp_wait(const tern_ddp *ddp, tern_error *err);
/* Returns the tally of a work that is done. */
const tern__tally *tern__ddp_tally(const tern_ddp *ddp, uint64_t seq);
/* Tells the other ranks which backward has begun, for their errors. */
void tern__ddp_note(const tern_ddp *ddp);
/* Waits until `test` no longer returns TERN_PENDING, and returns its result. Works progress meanwhile; the
 * loss of a rank is an error. */
int tern__ddp_await(tern_ddp *ddp, tern__ddp_hook test, tern_error *err);

/* ---- bucket.c ---- */

/* Cuts ddp->order into buckets. The first is closed at first_bucket_bytes, the others at bucket_bytes, and
 * all where the dtype or the memory changes. The leaf that exceeds the limit stays in the bucket (PyTorch's
 * compute_bucket_assignment_by_size). */
void tern__bucket_plan(tern_ddp *ddp);
/* Collective: cuts them again in the order in which rank 0's gradients were ready. */
int tern__bucket_rebuild(tern_ddp *ddp, tern_error *err);
/* True if any rank has used a leaf of the bucket, so that it has means. */
bool tern__bucket_has_mean(const tern_ddp *ddp, const tern__bucket *bucket);

/* ---- side.c: the side values, reduced with the last bucket ---- */

/* The loss; whether it counts; whether this rank's optimizers ask all ranks before a step (join.c); whether
 * there are new choices (choices.c); and, by leaf index, whether this rank has used it. */
enum { TERN__SIDE_LOSS, TERN__SIDE_COUNTS, TERN__SIDE_ASKED, TERN__SIDE_NEWS, TERN__SIDE_FLAGS };

static inline int tern__side_count(const tern_ddp *ddp)
{
    return TERN__SIDE_FLAGS + ddp->seal->leaf_count;
}
/* Set one of this rank's values before they are posted, and get its mean over all ranks when that is done. */
void tern__side_set(const tern_ddp *ddp, int i, double value);
double tern__side_get(const tern_ddp *ddp, int i);
/* Writes the values that are known when a backward starts. */
void tern__side_write(const tern_ddp *ddp);
/* Sets every leaf's `fresh`, and seal->is_asked, from the means. */
void tern__side_take(const tern_ddp *ddp);

/* ---- state.c: the parameters and buffers that all ranks share ---- */

/* Finds the ignored names (E_INVALID), and puts the remaining leaves into ddp->order. */
int tern__state_plan(tern_ddp *ddp, tern_error *err);
/* Returns entry i of the state dict if it is a buffer that all ranks share, else NULL. */
const tern__view *tern__state_buffer(const tern_ddp *ddp, int i);
/* Collective: copies root's parameters and buffers to all ranks. */
int tern__state_copy(tern_ddp *ddp, int root, tern_error *err);

/* ---- signature.c ---- */

/* Collective: returns E_MISMATCH with the first difference on all ranks, unless all have the same model and
 * options. */
int tern__signature_check(tern_ddp *ddp, tern_error *err);

/* ---- reducer.c ---- */

extern const tern__listener tern__reducer;

/* True if a leaf has a gradient on this rank; after a synchronised backward: if any rank has used the model.
 */
bool tern__ddp_has_gradients(const tern_ddp *ddp);

/* _shadow posts, for a backward in which this rank takes no part, what the other ranks post; _finish waits
 * for it. */
int tern__reducer_shadow(tern_ddp *ddp, tern_error *err);
int tern__reducer_finish(tern_ddp *ddp, tern_error *err);

#endif
