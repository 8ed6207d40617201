/* ddp.h - the internals of tern_ddp: buckets over the sealed gradient ranges, and the reducer that posts
 * them. */
#ifndef TERN_SRC_PARALLEL_DDP_H
#define TERN_SRC_PARALLEL_DDP_H

#include "comm/move/backend.h"
#include "device/backend.h"
#include "nn/nn.h"
#include "parallel/stats.h"

#include <tern/parallel.h>

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

/* The state of checksum.c. */
typedef struct tern__checksum {
    uint32_t window;     /* [world][leaf_count] the ranks' checksums of their parameters */
    tern__extent extent; /* no elements: checksums are off */
    uint64_t rounds;     /* synchronised backwards so far, including those as a shadow */
    uint64_t seq;        /* the running one's work; 0: none */
} tern__checksum;

/* The state of choices.c. */
typedef struct tern__ddp_choices {
    uint32_t window;     /* rank 0's lines, ended by a 0 */
    tern__extent extent; /* no elements: there is only one rank */
    bool is_due;         /* rank 0 has new choices in the running backward */
    uint64_t serial;     /* the sum of its devices' serials when it last wrote to the window */
} tern__ddp_choices;

/* A loss in a device's memory, for which a backward does not wait. */
typedef struct tern__ddp_loss {
    tern_device *device; /* of the gradients; NULL: the host reads the loss at once */
    bool is_reached;     /* the back end reaches the device: the loss is reduced there */
    float *block;        /* [2] this rank's loss, after the work the sum; and the mean */
    uint32_t window;     /* over the block, if the back end reaches the device */
    bool is_known;
    tern__extent extent;
    float *pinned;             /* otherwise the loss is copied here, before its bucket's gradients */
    tern__device_event *there; /* recorded after that copy */
    bool is_sent;              /* copied in this backward, but not written to the side values yet */
} tern__ddp_loss;

/* The state of staged.c for a gradient range in a device's memory. */
typedef struct tern__ddp_stage {
    tern__device_event *turn;   /* of the step's stream; the communication stream waits for it */
    tern__device_event **there; /* [leaf_count + 2] by bucket: after the copies into the window */
    tern__device_event *back;   /* after the copies out of it; the step's stream waits for it */
    void *pinned;               /* the window, once it is pinned */
} tern__ddp_stage;

/* A round: the backwards up to the next synchronised one, which reduces the gradients that they have
 * accumulated. */
typedef struct tern__ddp_round {
    bool active;                 /* the running backward is synchronised */
    bool is_inside;              /* a backward is running */
    bool used;                   /* the running backward reaches the model on this rank */
    bool reached;                /* so does it, or did an earlier one of this round */
    int next_put, next_bucket;   /* the first bucket that is not in its window yet; not posted yet */
    uint64_t backward;           /* the number of the running or last backward */
    uint32_t folded;             /* backwards in the round so far, including the running one */
    uint64_t last_seq, side_seq; /* the last work; the one with the side values */
    double count;                /* sum of the counts of the losses (normaliser.c); NAN: none yet */
    double next_count;           /* the next loss's count, set by the user; NAN: not set */
    double weight, share;        /* of the synchronised backward's posts */
    double loss_weight;          /* the running loss's weight in synchronised batch norms */
    bool has_samples;            /* this rank has samples in the round */
} tern__ddp_round;

/* The most windows of a ddp: two per range, and one each for the side values, the buffers in the host's and
 * in devices' memory, the loss, the checksums, the choices and the waits. */
enum { TERN__DDP_WINDOWS = 2 * TERN__RANGES + 7 };

struct tern_ddp {
    tern__listener listener; /* first: the group's list links these */
    tern_module *module;
    tern_group *group;
    tern__seal *seal;
    tern_ddp_opts opts;
    uint32_t number;
    void *channel;
    uint32_t opened[TERN__DDP_WINDOWS]; /* all windows that tern__ddp_window_open has opened */
    int opened_count;
    uint32_t windows[TERN__RANGES];   /* over the seal's gradient ranges; for a staged range, host memory */
    uint32_t narrow[TERN__RANGES];    /* by range: windows of gradients that are reduced in reduce_dtype */
    char *narrow_block[TERN__RANGES]; /* in a device's memory: below such a window, or laid out like it */
    uint32_t buffer_window, side_window;

    bool *ignored;  /* [tern_state_count] parameters and buffers that each rank keeps for itself */
    int leaf_count; /* synchronised leaves */
    int *order;     /* [leaf_count] leaf indices in bucket order */
    int *bucket_of; /* by leaf index; -1: ignored */
    tern__bucket *buckets;
    tern__extent *extents;         /* of all buckets, one array */
    int bucket_count, side_bucket; /* the first bucket with side values */
    bool rebuilt;

    bool sync; /* backwards are synchronised */
    tern__ddp_round round;
    double loss_mean;
    tern__ddp_loss loss;
    tern__extent *buffer_extents; /* host memory's, then devices'; NULL: buffers are not broadcast */
    int buffer_extent_count;
    int away_extent_count; /* those in devices' memory */
    tern__extent order_extent;

    bool *first_used; /* by leaf index: used in the first backward that used any; for static_graph */
    bool has_first;

    bool shadow;     /* this rank is in tern_ddp_join */
    bool over;       /* all ranks were shadows in the last round */
    int last_active; /* the highest rank that was not a shadow, in the last round that had one */
    tern__checksum checksum;
    tern__ddp_choices choices;
    tern__stats stats;
    struct {
        uint32_t window;
        size_t bytes;        /* 0: there are none */
        tern_device *pinned; /* the device that has pinned the window, or NULL */
    } away;                  /* for buffers in devices' memory */
    tern__ddp_stage stages[TERN__RANGES];
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

/* Opens a window of the group's back end. tern_ddp_free closes it. */
int tern__ddp_window_open(tern_ddp *ddp, void *base, size_t bytes, uint32_t *window, tern_error *err);
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
/* Tells the other ranks which backward has begun, for their errors. */
void tern__ddp_note(const tern_ddp *ddp);
typedef int (*tern__ddp_test)(const tern_ddp *ddp, tern_error *err);
/* Waits until `test` no longer returns TERN_PENDING, and returns its result. Works progress meanwhile; the
 * loss of a rank is an error. */
int tern__ddp_await(const tern_ddp *ddp, tern__ddp_test test, tern_error *err);

/* ---- bucket.c ---- */

/* Cuts ddp->order into buckets. The first is closed at first_bucket_bytes, the others at bucket_bytes, and
 * all where the dtype or the memory changes. The leaf that exceeds the limit stays in the bucket (PyTorch's
 * compute_bucket_assignment_by_size). */
int tern__bucket_plan(tern_ddp *ddp, tern_error *err);

/* ---- away.c: buffers in a device's own memory ---- */

int tern__away_open(tern_ddp *ddp, tern_error *err);
/* Copy the buffers into their window, and out of it. */
int tern__away_put(const tern_ddp *ddp, tern_error *err);
int tern__away_take(const tern_ddp *ddp, tern_error *err);

/* ---- compress.c: f32 gradients that are reduced in reduce_dtype, in windows of their own ---- */

int tern__compress_open(tern_ddp *ddp, tern_error *err);
void tern__compress_close(tern_ddp *ddp);
/* Return the dtype in which the gradients of range r are reduced, and the window in which they are then. */
tern_dtype tern__compress_dtype(const tern_ddp *ddp, int r);
uint32_t tern__compress_window(const tern_ddp *ddp, int r);
/* Rounds a bucket's gradients into the window. */
int tern__compress_put(const tern_ddp *ddp, const tern__bucket *bucket, tern_error *err);
/* Copies the means out of it, for all leaves that have one. */
int tern__compress_take(const tern_ddp *ddp, tern_error *err);

/* ---- staged.c: gradients in the memory of devices that the back end does not reach ---- */

int tern__staged_open(tern_ddp *ddp, tern_error *err);
void tern__staged_close(tern_ddp *ddp);
/* Starts the copies of a bucket's gradients into their window. */
int tern__staged_put(tern_ddp *ddp, int bucket, tern_error *err);
/* Returns TERN_OK if the next bucket may be posted: either this rank's gradients are in the window, or it has
 * none and the device has read the means that will be overwritten. Otherwise TERN_PENDING or an error. */
int tern__staged_test(const tern_ddp *ddp, tern_error *err);
/* Copies the means to the device, for all buckets that have one. */
int tern__staged_take(const tern_ddp *ddp, tern_error *err);

/* Other copies to and from these devices. _depart: the communication streams wait for the steps' streams.
 * _copy: enqueues a copy; the host's memory must be pinned. _return: the steps' streams wait for the copies.
 * _returned: TERN_OK once these are done, else TERN_PENDING or an error. */
int tern__staged_depart(const tern_ddp *ddp, tern_error *err);
int tern__staged_copy(const tern_ddp *ddp, void *to, const void *from, size_t bytes, tern_error *err);
int tern__staged_return(const tern_ddp *ddp, tern_error *err);
int tern__staged_returned(const tern_ddp *ddp, tern_error *err);

/* ---- side.c: the side values, reduced with the last bucket ---- */

static inline int tern__side_count(const tern_ddp *ddp)
{
    return 4 + ddp->seal->leaf_count;
}
int tern__side_open(tern_ddp *ddp, tern_error *err);
void tern__side_close(tern_ddp *ddp);
/* Writes this backward's values; loss NULL: this rank is a shadow. */
int tern__side_write(tern_ddp *ddp, const tern_tensor *loss, tern_error *err);
/* To be called before a bucket with side values is posted. */
int tern__side_arrive(tern_ddp *ddp, tern_error *err);
/* Reads the means over all ranks: sets every leaf's `fresh`, the mean loss, and choices.is_due. */
int tern__side_take(tern_ddp *ddp, tern_error *err);

/* ---- state.c: the parameters and buffers that all ranks share ---- */

/* Finds the ignored names (E_INVALID), and puts the remaining leaves into ddp->order. */
int tern__state_plan(tern_ddp *ddp, tern_error *err);
/* To be called once the buffers have a window. */
int tern__state_plan_buffers(tern_ddp *ddp, tern_error *err);
/* Collective: copies root's parameters and buffers to all ranks. */
int tern__state_copy(tern_ddp *ddp, int root, tern_error *err);

/* ---- normaliser.c ---- */

/* To be called when any backward begins: adds the loss's count. */
int tern__normaliser_add(tern_ddp *ddp, const tern_tensor *loss, tern_error *err);
/* Sets the weight and share of the synchronised backward's posts. */
void tern__normaliser_weigh(tern_ddp *ddp);

/* ---- checksum.c ---- */

int tern__checksum_open(tern_ddp *ddp, tern_error *err);
/* To be called before the buckets of a synchronised backward are posted. */
int tern__checksum_post(tern_ddp *ddp, tern_error *err);
/* To be called when the backward's works are done: E_MISMATCH on all ranks if one has drifted. */
int tern__checksum_check(const tern_ddp *ddp, tern_error *err);

/* ---- choices.c: sends rank 0's choices of convolution algorithms to all ranks ---- */

int tern__ddp_choices_open(tern_ddp *ddp, tern_error *err);
/* True if this is rank 0 and it has choices that it has not sent yet. */
bool tern__ddp_choices_has_news(const tern_ddp *ddp);
/* To be called before and after the broadcast that is due then: rank 0 writes its lines, the other ranks read
 * them. */
void tern__ddp_choices_put(tern_ddp *ddp);
void tern__ddp_choices_take(const tern_ddp *ddp);

/* ---- signature.c ---- */

/* Collective: returns E_MISMATCH with the first difference on all ranks, unless all have the same model and
 * options. */
int tern__signature_check(tern_ddp *ddp, tern_error *err);

/* ---- static_graph.c ---- */

/* To be called when any backward begins: E_STATE if the promise is broken. */
int tern__static_graph_check(tern_ddp *ddp, tern_error *err);

/* ---- reducer.c ---- */

extern const tern__listener tern__reducer;

/* _shadow posts, for a backward in which this rank takes no part, what the other ranks post; _finish waits
 * for it. */
int tern__reducer_shadow(tern_ddp *ddp, tern_error *err);
int tern__reducer_finish(tern_ddp *ddp, tern_error *err);

#endif
