/* ddp.h - tern_ddp from inside: buckets over the sealed gradient range, and the reducer that posts them. */
#ifndef TERN_SRC_PARALLEL_DDP_H
#define TERN_SRC_PARALLEL_DDP_H

#include "comm/group.h"
#include "nn/nn.h"
#include "parallel/stats.h"

#include <tern/parallel.h>

/* Neighbouring leaves, as backward finishes them, whose gradients are reduced in one work. */
typedef struct tern__bucket {
    int first, count; /* of ddp->order                                            */
    size_t bytes;
    tern_dtype dtype;
    int waiting;           /* leaves whose gradient is still being computed            */
    tern__extent *extents; /* pieces of the gradient window; of the last bucket also the side values */
    int extent_count;
} tern__bucket;

struct tern_ddp {
    tern__listener listener; /* first: the group's list links these */
    tern_module *module;
    tern_group *group;
    tern__seal *seal;
    tern_ddp_opts opts;
    uint32_t number;
    void *channel;
    uint32_t windows[TERN_DTYPE_COUNT]; /* over the seal's gradient ranges */
    int window_count;
    uint32_t buffer_window, side_window;
    bool has_buffer_window, has_side_window;

    int *order;     /* [leaf_count] leaf indices in bucket order                */
    int *bucket_of; /* [leaf_count] by leaf index                               */
    tern__bucket *buckets;
    tern__extent *extents; /* the buckets' pieces, one array                     */
    int bucket_count;
    int *ready_order; /* [leaf_count] seen in the first synchronised backward    */
    int ready_count;
    bool rebuilt;

    bool sync, active; /* active: the running backward is synchronised           */
    int next_bucket;   /* posted so far                                          */
    uint64_t backward; /* number of the running or last backward                 */
    uint32_t folded;   /* backwards since the last synchronised one, this one included */
    uint64_t last_seq;
    double loss_mean;
    tern__extent buffer_extent, order_extent;
    tern__stats stats;
};

/* ---- bucket.c ---- */

/* Cuts ddp->order into buckets: the first one closed at first_bucket_bytes, the rest at bucket_bytes, and
 * always where the dtype changes; the overflowing leaf stays in (PyTorch's
 * compute_bucket_assignment_by_size). */
int tern__bucket_plan(tern_ddp *ddp, tern_error *err);
/* Elements of the side window: the loss, then one flag a leaf. In the last bucket's dtype, they ride with it.
 */
static inline int tern__side_count(const tern_ddp *ddp)
{
    return 1 + ddp->seal->leaf_count;
}

/* ---- signature.c ---- */

/* Collective: E_MISMATCH on all ranks, naming the first difference, unless all ranks have the same model and
 * options. */
int tern__signature_check(tern_ddp *ddp, tern_error *err);

/* ---- reducer.c ---- */

extern const tern__listener tern__reducer;

#endif
