/* reducer.c - what a ddp does during backward.
 *
 * At the start every use of every parameter has been counted, so it is known which gradients will come and
 * which are unused: the side values (the loss and one flag a leaf) are written at once. When a bucket's last
 * gradient has been written the bucket is posted, in bucket order, and whatever can be reduced is reduced
 * right there, by whoever gets to it; nobody waits. At the end the rest is posted and the last work awaited:
 * every gradient is the mean then. The side values came with the last bucket: a leaf that no rank used keeps
 * its "no gradient", and the mean loss is there for a progress bar. After the first synchronised backward the
 * buckets are cut again in the order in which rank 0's gradients were ready; that changes buckets, never
 * addresses. */
#include "parallel/ddp.h"

#include <math.h>
#include <string.h>

static tern_ddp *ddp_of(tern__listener *self)
{
    return (tern_ddp *)self;
}

/* ---- side values ---- */

static void side_set(const tern_ddp *ddp, int i, double value)
{
    void *side = ddp->group->backend->window_base(ddp->group->state, ddp->side_window);
    if (ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64)
        ((double *)side)[i] = value;
    else
        ((float *)side)[i] = (float)value;
}

static double side_get(const tern_ddp *ddp, int i)
{
    const void *side = ddp->group->backend->window_base(ddp->group->state, ddp->side_window);
    return ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64 ? ((const double *)side)[i]
                                                                 : ((const float *)side)[i];
}

/* ---- posting ---- */

/* A gradient that nothing was written to counts as zero in the sum. */
static void zero_missing(const tern_ddp *ddp, const tern__bucket *bucket)
{
    for (int i = 0; i < bucket->count; i++) {
        const tern__leaf *leaf = ddp->seal->leaves[ddp->order[bucket->first + i]];
        if (!leaf->fresh) memset(leaf->grad->view.data, 0, tern__view_bytes(&leaf->grad->view));
    }
}

static int post_bucket(tern_ddp *ddp, int index, tern_error *err)
{
    const tern__bucket *bucket = &ddp->buckets[index];
    zero_missing(ddp, bucket);
    tern__post post = {.kind = TERN__ALL_REDUCE,
                       .dtype = bucket->dtype,
                       .op = TERN_AVG,
                       .owner = ddp->number,
                       .bucket = (uint32_t)index,
                       .backward = ddp->backward,
                       .folded = ddp->folded,
                       .extents = bucket->extents,
                       .extent_count = bucket->extent_count};
    tern__stats_posted(ddp, index);
    return ddp->group->backend->post(ddp->channel, &post, &ddp->last_seq, err);
}

static int post_ready(tern_ddp *ddp, tern_error *err)
{
    while (ddp->next_bucket < ddp->bucket_count && ddp->buckets[ddp->next_bucket].waiting == 0) {
        int status = post_bucket(ddp, ddp->next_bucket++, err);
        if (status) return status;
    }
    return TERN_OK;
}

/* ---- the three moments ---- */

static void count_waiting(tern_ddp *ddp)
{
    for (int b = 0; b < ddp->bucket_count; b++) ddp->buckets[b].waiting = 0;
    for (int k = 0; k < ddp->seal->leaf_count; k++) {
        const tern__leaf *leaf = ddp->seal->leaves[k];
        ddp->buckets[ddp->bucket_of[k]].waiting += leaf->pending > 0;
        side_set(ddp, 1 + k, leaf->fresh || leaf->pending > 0);
    }
}

static int begin(tern__listener *self, const tern_tensor *loss, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    ddp->backward++;
    ddp->folded++;
    ddp->active = ddp->sync;
    if (!ddp->active) return TERN_OK;
    int status = tern__group_check(ddp->group, "tern_backward", err);
    if (status) return status;
    ddp->next_bucket = 0;
    ddp->ready_count = 0;
    tern__stats_begin(ddp, loss);
    count_waiting(ddp);
    side_set(ddp, 0, tern__view_get(&loss->view, 0));
    return post_ready(ddp, err);
}

static int ready(tern__listener *self, tern__leaf *leaf, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    if (!ddp->active) return TERN_OK;
    tern__stats_ready(ddp, leaf);
    if (!ddp->rebuilt) ddp->ready_order[ddp->ready_count++] = leaf->index;
    ddp->buckets[ddp->bucket_of[leaf->index]].waiting--;
    int status = post_ready(ddp, err);
    return status ? status : ddp->group->backend->progress(ddp->channel, err);
}

static int wait_last(tern_ddp *ddp, tern_error *err)
{
    return ddp->group->backend->wait(ddp->channel, ddp->last_seq, err);
}

/* Rank 0's bytes of one extent to everybody. */
static int post_broadcast(tern_ddp *ddp, const tern__extent *extent, tern_error *err)
{
    tern__post post = {.kind = TERN__BROADCAST,
                       .dtype = TERN_U8,
                       .owner = ddp->number,
                       .bucket = (uint32_t)ddp->bucket_count,
                       .backward = ddp->backward,
                       .folded = ddp->folded,
                       .extents = extent,
                       .extent_count = 1};
    return ddp->group->backend->post(ddp->channel, &post, &ddp->last_seq, err);
}

/* Leaves that were not ready in this backward keep their places behind those that were. */
static void complete_order(tern_ddp *ddp)
{
    for (int place = 0; place < ddp->seal->leaf_count; place++) {
        bool seen = false;
        for (int i = 0; i < ddp->ready_count; i++) seen |= ddp->ready_order[i] == ddp->order[place];
        if (!seen) ddp->ready_order[ddp->ready_count++] = ddp->order[place];
    }
}

/* Rank 0's ready order to everybody, and new buckets from it. */
static int rebuild(tern_ddp *ddp, tern_error *err)
{
    char *side = ddp->group->backend->window_base(ddp->group->state, ddp->side_window);
    size_t bytes = (size_t)ddp->seal->leaf_count * sizeof(*ddp->order);
    complete_order(ddp);
    memcpy(side + ddp->order_extent.offset, ddp->ready_order, bytes);
    int status = post_broadcast(ddp, &ddp->order_extent, err);
    if (!status) status = wait_last(ddp, err);
    if (status) return status;
    memcpy(ddp->order, side + ddp->order_extent.offset, bytes);
    ddp->rebuilt = true;
    return tern__bucket_plan(ddp, err);
}

static void take_side_values(tern_ddp *ddp)
{
    ddp->loss_mean = side_get(ddp, 0);
    for (int k = 0; k < ddp->seal->leaf_count; k++) ddp->seal->leaves[k]->fresh = side_get(ddp, 1 + k) > 0;
}

static int end(tern__listener *self, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    if (!ddp->active) return TERN_OK;
    int status = post_ready(ddp, err);
    if (!status && ddp->buffer_extent.count) status = post_broadcast(ddp, &ddp->buffer_extent, err);
    if (!status) status = wait_last(ddp, err);
    if (status) return status;
    tern__stats_done(ddp);
    take_side_values(ddp);
    ddp->folded = 0;
    ddp->active = false;
    return ddp->rebuilt ? TERN_OK : rebuild(ddp, err);
}

const tern__listener tern__reducer = {.begin = begin, .ready = ready, .end = end};
