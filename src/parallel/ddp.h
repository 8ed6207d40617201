/* ddp.h - tern_ddp from inside: buckets over the sealed gradient range, and the reducer that posts them. */
#ifndef TERN_SRC_PARALLEL_DDP_H
#define TERN_SRC_PARALLEL_DDP_H

#include "comm/group.h"
#include "device/backend.h"
#include "nn/nn.h"
#include "parallel/stats.h"

#include <tern/parallel.h>

/* Neighbouring leaves, as backward finishes them, whose gradients are reduced in one work. */
typedef struct tern__bucket {
    int first, count; /* of ddp->order                                            */
    size_t bytes;
    tern_dtype dtype;
    int waiting;           /* leaves whose gradient is still being computed            */
    bool used;             /* a leaf of it has a gradient, or will have one            */
    tern__extent *extents; /* pieces of the gradient window; of the last bucket also the side values */
    int extent_count;
} tern__bucket;

/* What of checksum.c stays from backward to backward. */
typedef struct tern__checksum {
    uint32_t window; /* [world][leaf_count] the ranks' checksums of their parameters */
    bool has_window; /* false: not wanted                                            */
    tern__extent extent;
    uint64_t rounds; /* synchronised backwards, this rank's own and those in which it was a shadow */
    uint64_t seq;    /* the running one's work; 0: it has none                                    */
} tern__checksum;

/* What of choices.c stays from backward to backward. */
typedef struct tern__ddp_choices {
    uint32_t window; /* rank 0's lines, and a 0 */
    bool has_window; /* false: there is only one rank */
    tern__extent extent;
    bool is_due;     /* rank 0 has news in the running backward */
    uint64_t serial; /* of rank 0's devices, summed up, when it last wrote into the window */
} tern__ddp_choices;

/* The loss of a model in a device's memory, for which nobody waits at the begin of a backward. */
typedef struct tern__ddp_loss {
    tern_device *device; /* of all gradients; NULL: the loss is read where it is    */
    bool is_reached;     /* by the back end: it goes over there                     */
    float *block;        /* this rank's, and after the work the sum; and the mean   */
    uint32_t window;     /* of one that is reached, until the user asks for it      */
    bool has_window, is_known;
    tern__extent extent;
    float *pinned;             /* not reached: the loss is copied here, before its bucket's gradients */
    tern__device_event *there; /* set behind that copy                                      */
    bool is_sent;              /* in this backward, and not written to the side values yet  */
} tern__ddp_loss;

/* What staged.c keeps of a gradient range in a device's memory. */
typedef struct tern__ddp_stage {
    tern__device_event *turn;   /* of the step, for the other stream to follow                     */
    tern__device_event **there; /* [leaf_count + 2] by bucket: behind the copies into the window */
    tern__device_event *back;   /* behind those out of it, for the step to follow                */
    void *pinned;               /* the window, or NULL                                           */
} tern__ddp_stage;

struct tern_ddp {
    tern__listener listener; /* first: the group's list links these */
    tern_module *module;
    tern_group *group;
    tern__seal *seal;
    tern_ddp_opts opts;
    uint32_t number;
    void *channel;
    uint32_t windows[TERN__RANGES]; /* over the seal's gradient ranges, or beside one in a device's memory */
    int window_count;
    uint32_t narrow[TERN__RANGES]; /* windows of gradients that go over in reduce_dtype, by range */
    bool has_narrow[TERN__RANGES];
    char *narrow_block[TERN__RANGES]; /* of a device's memory: under such a window, or laid out as it is */
    uint32_t buffer_window, side_window;
    bool has_buffer_window, has_side_window;

    bool *ignored;  /* [tern_state_count] parameters and buffers that are each rank's own */
    int leaf_count; /* synchronised leaves                                      */
    int *order;     /* [leaf_count] leaf indices in bucket order                */
    int *bucket_of; /* by leaf index; -1: ignored                               */
    tern__bucket *buckets;
    tern__extent *extents;         /* the buckets' pieces, one array                     */
    int bucket_count, side_bucket; /* from the latter on they have side values */
    bool rebuilt;

    bool sync, active;           /* active: the running backward is synchronised           */
    bool is_inside;              /* a backward has begun and not ended                     */
    bool used;                   /* this rank's running backward comes to the model        */
    bool reached;                /* it does, or one before it since the last synchronised one */
    int next_put, next_bucket;   /* in their windows or on the way there, and posted so far */
    uint64_t backward;           /* number of the running or last backward                 */
    uint32_t folded;             /* backwards since the last synchronised one, this one included */
    uint64_t last_seq, side_seq; /* the last work, and the one that the side values ride in */
    double loss_mean;
    tern__ddp_loss loss;
    tern__extent *buffer_extents; /* NULL: buffers are each rank's own; those of the host's memory, then */
    int buffer_extent_count;
    int away_extent_count; /* those that go over in a device's */
    tern__extent order_extent;

    double count;      /* of the backwards folded into the running one: what their losses were divided by */
    double next_count; /* of the next backward, said by the user; NAN: not */
    double weight, share; /* of the running backward's posts           */
    double loss_weight;   /* of its loss among the ranks', in synchronised batch norms of the model */
    bool has_samples;     /* this rank, in it                           */

    bool *first_used; /* by leaf index, in the first backward that used any; for static_graph */
    bool has_first;

    bool shadow, over; /* in tern_ddp_join; and all ranks were, in the last round */
    int last_active;   /* the highest rank that was no shadow in the last round in which there was one */
    tern__checksum checksum;
    tern__ddp_choices choices;
    tern__stats stats;
    struct {
        uint32_t window;
        bool has_window;
        size_t bytes;
        tern_device *pinned; /* by which the window is, or NULL */
    } away;                  /* of the buffers in devices' memory */
    tern__ddp_stage stages[TERN__RANGES];
};

/* The back end reaches the device's memory: what is in it goes over where it is. */
static inline bool tern__ddp_reaches(const tern_ddp *ddp, const tern_device *device)
{
    return device && device->backend && ddp->group->backend->window_of;
}

/* ---- post.c ---- */

/* Posts a work of the running backward: fills in whose it is and sets ddp->last_seq. */
int tern__ddp_post(tern_ddp *ddp, tern__post *work, tern_error *err);
/* Until `test` says something else than TERN_PENDING. Works that all have posted go on meanwhile, and a rank
 * that is lost ends it. */
typedef int (*tern__ddp_test)(const tern_ddp *ddp, tern_error *err);
int tern__ddp_await(const tern_ddp *ddp, tern__ddp_test test, tern_error *err);

/* ---- bucket.c ---- */

/* Cuts ddp->order into buckets: the first one closed at first_bucket_bytes, the rest at bucket_bytes, and
 * always where the dtype or the memory changes; the overflowing leaf stays in (PyTorch's
 * compute_bucket_assignment_by_size). */
int tern__bucket_plan(tern_ddp *ddp, tern_error *err);

/* ---- away.c: buffers in a device's own memory ---- */

int tern__away_open(tern_ddp *ddp, tern_error *err);
void tern__away_close(tern_ddp *ddp);
/* Into their window, and from it. */
int tern__away_put(const tern_ddp *ddp, tern_error *err);
int tern__away_take(const tern_ddp *ddp, tern_error *err);

/* ---- compress.c: gradients of f32 that go over in reduce_dtype, beside their memory ---- */

int tern__compress_open(tern_ddp *ddp, tern_error *err);
void tern__compress_close(tern_ddp *ddp);
/* In which the gradients of range r go over, and the window that they are in then. */
tern_dtype tern__compress_dtype(const tern_ddp *ddp, int r);
uint32_t tern__compress_window(const tern_ddp *ddp, int r);
/* A bucket's gradients into the window. */
int tern__compress_put(const tern_ddp *ddp, const tern__bucket *bucket, tern_error *err);
/* The means out of it, of all leaves that have one. */
int tern__compress_take(const tern_ddp *ddp, tern_error *err);

/* ---- staged.c: gradients in the memory of devices that the back end does not reach ---- */

int tern__staged_open(tern_ddp *ddp, tern_error *err);
void tern__staged_close(tern_ddp *ddp);
/* A bucket's gradients set out for their window. */
int tern__staged_put(tern_ddp *ddp, int bucket, tern_error *err);
/* TERN_OK: the next bucket may be posted, as this rank's are there, or the device has read what is to be
 * written over; TERN_PENDING, or an error. */
int tern__staged_test(const tern_ddp *ddp, tern_error *err);
/* The means to the device, of all buckets that have one. */
int tern__staged_take(const tern_ddp *ddp, tern_error *err);

/* Copies. _depart: the streams of communication wait for the steps'. _copy: asked of them; the host's memory
 * must be pinned. _return: the steps' streams wait for the copies. _returned: TERN_OK once they are done,
 * TERN_PENDING, or an error. */
int tern__staged_depart(const tern_ddp *ddp, tern_error *err);
int tern__staged_copy(const tern_ddp *ddp, void *to, const void *from, size_t bytes, tern_error *err);
int tern__staged_return(const tern_ddp *ddp, tern_error *err);
int tern__staged_returned(const tern_ddp *ddp, tern_error *err);

/* ---- side.c: the loss, whether it counts, whether optimizers ask, whether there are choices to be told, and
 * one flag a leaf; they ride with the last bucket ---- */

static inline int tern__side_count(const tern_ddp *ddp)
{
    return 4 + ddp->seal->leaf_count;
}
int tern__side_open(tern_ddp *ddp, tern_error *err);
void tern__side_close(tern_ddp *ddp);
/* Of this backward; loss NULL: a shadow's. */
int tern__side_write(tern_ddp *ddp, const tern_tensor *loss, tern_error *err);
/* Before a bucket with side values is posted. */
int tern__side_arrive(tern_ddp *ddp, tern_error *err);
/* The means of all ranks: sets every leaf's `fresh`, the mean loss, and whether choices are to be told. */
int tern__side_take(tern_ddp *ddp, tern_error *err);

/* ---- state.c: what of the model's state all ranks share ---- */

/* Finds the ignored names (E_INVALID) and puts the leaves that are left in ddp->order. */
int tern__state_plan(tern_ddp *ddp, tern_error *err);
/* Once the buffers have a window. */
int tern__state_plan_buffers(tern_ddp *ddp, tern_error *err);
/* Collective: root's parameters and buffers to all. */
int tern__state_copy(tern_ddp *ddp, int root, tern_error *err);

/* ---- normaliser.c ---- */

/* At the begin of every backward. */
int tern__normaliser_add(tern_ddp *ddp, const tern_tensor *loss, tern_error *err);
/* What the synchronised backward's posts weigh. */
void tern__normaliser_weigh(tern_ddp *ddp);

/* ---- checksum.c ---- */

int tern__checksum_open(tern_ddp *ddp, tern_error *err);
void tern__checksum_close(tern_ddp *ddp);
/* Before the buckets of a synchronised backward. */
int tern__checksum_post(tern_ddp *ddp, tern_error *err);
/* When the backward's works are done: E_MISMATCH on all ranks if one has drifted. */
int tern__checksum_check(const tern_ddp *ddp, tern_error *err);

/* ---- choices.c: rank 0's algorithms of convolutions to all ranks ---- */

int tern__ddp_choices_open(tern_ddp *ddp, tern_error *err);
void tern__ddp_choices_close(tern_ddp *ddp);
/* Whether this is rank 0, and knows what it has not told the others. */
bool tern__ddp_choices_has_news(const tern_ddp *ddp);
/* Around the broadcast that is due then: rank 0's lines into the window, and the others' out of it. */
void tern__ddp_choices_put(tern_ddp *ddp);
void tern__ddp_choices_take(const tern_ddp *ddp);

/* ---- signature.c ---- */

/* Collective: E_MISMATCH on all ranks, naming the first difference, unless all ranks have the same model and
 * options. */
int tern__signature_check(tern_ddp *ddp, tern_error *err);

/* ---- static_graph.c ---- */

/* At the begin of every backward: E_STATE where the promise is broken. */
int tern__static_graph_check(tern_ddp *ddp, tern_error *err);

/* ---- reducer.c ---- */

extern const tern__listener tern__reducer;

/* A backward of the others in which this rank has no part: posts what they post; then awaits it. */
int tern__reducer_shadow(tern_ddp *ddp, tern_error *err);
int tern__reducer_finish(tern_ddp *ddp, tern_error *err);

#endif
