/* reducer.c - reduces gradients while backward runs.
 *
 * When a backward begins, every use of every parameter has been counted, so it is known which gradients will
 * come and which parameters are unused: the side values (the loss and one flag per leaf) are written at once.
 * When the last gradient of a bucket has been written, the bucket is posted, in bucket order. Any rank that
 * looks at it reduces what can be reduced at that moment; no rank waits. At the end of backward the rest is
 * posted and the last work is awaited: then every gradient is the mean. The side values are reduced with the
 * last bucket: a leaf that no rank used still has no gradient, and the mean loss is known for a progress bar.
 * After the first synchronised backward that used the model, the buckets are cut again in the order in which
 * rank 0's gradients were ready; this changes buckets, never addresses.
 *
 * A rank that has run out of inputs (join.c) posts the same works with weight 0. */
#include "parallel/ddp.h"

#include <math.h>
#include <string.h>

static tern_ddp *ddp_of(tern__listener *self)
{
    return (tern_ddp *)self;
}

/* ---- posting ---- */

/* Zeroes gradients that nothing was written to, and all gradients of a rank without samples, unless the
 * rank's weight is 0 and they are not read. */
static int zero_missing(const tern_ddp *ddp, const tern__bucket *bucket, tern_error *err)
{
    int status = TERN_OK;
    bool counts = ddp->round.has_samples || ddp->round.weight == 0;
    for (int i = 0; i < bucket->count && !status; i++) {
        const tern__leaf *leaf = ddp->seal->leaves[ddp->order[bucket->first + i]];
        if (!leaf->fresh || !counts)
            status = tern__memory_zero(leaf->grad->view.data, tern__view_bytes(&leaf->grad->view), err);
    }
    return status;
}

/* Copies the bucket's gradients into the windows, if they are not reduced where they are. */
static int put_bucket(tern_ddp *ddp, int index, tern_error *err)
{
    const tern__bucket *bucket = &ddp->buckets[index];
    int status = bucket->used ? zero_missing(ddp, bucket, err) : TERN_OK;
    if (status || !bucket->used) return status;
    status = tern__compress_put(ddp, bucket, err);
    return status ? status : tern__staged_put(ddp, index, err);
}

/* A bucket in which this rank has no gradients has weight 0: it is not read, and not reduced if no rank has
 * gradients in it. Gradients that only wait for their step, while backward runs on another model, are the
 * mean already: this rank is idle, and contributes them only if another rank's backward reaches them. */
static int post_bucket(tern_ddp *ddp, int index, tern_error *err)
{
    const tern__bucket *bucket = &ddp->buckets[index];
    double weight = bucket->used ? ddp->round.weight : 0;
    tern__post work = {.kind = TERN__ALL_REDUCE,
                       .dtype = bucket->dtype,
                       .op = TERN_AVG,
                       .extents = bucket->extents,
                       .extent_count = bucket->extent_count,
                       .terms = {.weighted = weight != 1 || ddp->round.share != 1,
                                 .weight = weight,
                                 .share = ddp->round.share,
                                 .idle = !ddp->round.reached,
                                 .counted = ddp->opts.normaliser == TERN_NORMALISER_LOSS}};
    tern__stats_posted(ddp, index);
    int status = tern__ddp_post(ddp, &work, index, err);
    ddp->round.side_seq = ddp->round.last_seq;
    return status;
}

static int post_arrived(tern_ddp *ddp, bool waits, tern_error *err)
{
    int status = TERN_OK;
    while (!status && ddp->round.next_bucket < ddp->round.next_put) {
        status = waits ? tern__ddp_await(ddp, tern__staged_test, err) : tern__staged_test(ddp, err);
        if (!status && ddp->round.next_bucket >= ddp->side_bucket) status = tern__side_arrive(ddp, err);
        if (!status) status = post_bucket(ddp, ddp->round.next_bucket++, err);
    }
    return status == TERN_PENDING ? TERN_OK : status;
}

static int post_ready(tern_ddp *ddp, tern_error *err)
{
    int status = post_arrived(ddp, false, err);
    while (!status && ddp->round.next_put < ddp->bucket_count &&
           ddp->buckets[ddp->round.next_put].waiting == 0) {
        status = put_bucket(ddp, ddp->round.next_put++, err);
        if (!status) status = post_arrived(ddp, false, err);
    }
    return status;
}

/* Broadcasts rank 0's bytes, or, if rank 0 is a shadow, those of the highest rank that is not. */
static int post_broadcast(tern_ddp *ddp, const tern__extent *extents, int count, tern_error *err)
{
    tern__post work = {.kind = TERN__BROADCAST, .dtype = TERN_U8, .extents = extents, .extent_count = count};
    return tern__ddp_post(ddp, &work, ddp->bucket_count, err);
}

static int post_rest(tern_ddp *ddp, tern_error *err)
{
    int status = post_ready(ddp, err);
    if (!status) status = post_arrived(ddp, true, err);
    if (!status) status = tern__away_put(ddp, err);
    if (!status && ddp->buffer_extent_count)
        status = post_broadcast(ddp, ddp->buffer_extents, ddp->buffer_extent_count, err);
    if (!status && ddp->away_extent_count)
        status =
            post_broadcast(ddp, ddp->buffer_extents + ddp->buffer_extent_count, ddp->away_extent_count, err);
    return status ? status : tern__straggler_post(ddp, err);
}

/* ---- when backward begins ---- */

static void count_waiting(tern_ddp *ddp)
{
    bool any = false;
    for (int b = 0; b < ddp->bucket_count; b++) {
        ddp->buckets[b].waiting = 0;
        ddp->buckets[b].used = false;
    }
    ddp->round.used = false;
    for (int i = 0; i < ddp->leaf_count; i++) {
        const tern__leaf *leaf = ddp->seal->leaves[ddp->order[i]];
        tern__bucket *bucket = &ddp->buckets[ddp->bucket_of[leaf->index]];
        bucket->waiting += leaf->pending > 0;
        bucket->used |= leaf->fresh || leaf->pending > 0;
        any |= bucket->used;
        ddp->round.used |= leaf->pending > 0;
    }
    ddp->round.reached |= ddp->round.used;
    for (int b = ddp->side_bucket; b < ddp->bucket_count; b++) ddp->buckets[b].used |= any;
}

static int open_round(tern_ddp *ddp, const tern_tensor *loss, tern_error *err)
{
    ddp->round.next_put = ddp->round.next_bucket = 0;
    int status = tern__side_write(ddp, loss, err);
    return status ? status : tern__checksum_post(ddp, err);
}

/* A nested backward would restart the outer one's round. */
static int fail_inside(const tern_ddp *ddp, tern_error *err)
{
    tern__error_set(
        err, "tern_backward", TERN_E_STATE,
        "it was called inside another backward, in which the tern_ddp of %s takes part: use a scope "
        "without a group there",
        ddp->module->kind);
    return tern__group_fail(ddp->group, err);
}

static int begin(tern__listener *self, const tern_tensor *loss, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    if (ddp->round.is_inside) return fail_inside(ddp, err);
    ddp->round.is_inside = true;
    ddp->round.backward++;
    ddp->round.folded++;
    ddp->round.active = ddp->sync;
    tern__ddp_note(ddp);
    count_waiting(ddp);
    ddp->seal->is_asked |= ddp->round.used && loss->scope->asks;
    int status = tern__static_graph_check(ddp, err);
    if (!status) status = tern__normaliser_add(ddp, loss, err);
    if (!status && ddp->round.active) status = tern__group_check(ddp->group, "tern_backward", err);
    if (status || !ddp->round.active) return status;
    tern__stats_begin(ddp, loss);
    tern__normaliser_weigh(ddp);
    status = open_round(ddp, loss, err);
    return status || ddp->opts.delay_all_reduce ? status : post_ready(ddp, err);
}

static int ready(tern__listener *self, tern__leaf *leaf, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    if (!ddp->round.active) return TERN_OK;
    tern__stats_ready(ddp, leaf);
    ddp->buckets[ddp->bucket_of[leaf->index]].waiting--;
    if (ddp->opts.delay_all_reduce) return TERN_OK;
    int status = post_ready(ddp, err);
    return status ? status : ddp->group->root->progress(ddp->group, err);
}

/* ---- when backward ends ---- */

static int wait_last(tern_ddp *ddp, tern_error *err)
{
    return ddp->group->backend->wait(ddp->channel, ddp->round.last_seq, err);
}

/* Writes the leaves in the order in which they were ready; the remaining ones follow in their old order. */
static void write_order(const tern_ddp *ddp, int *order)
{
    const tern__stats *stats = &ddp->stats;
    int count = stats->ready_count;
    memcpy(order, stats->ready, (size_t)count * sizeof(*order));
    for (int place = 0; place < ddp->leaf_count; place++) {
        bool seen = false;
        for (int i = 0; i < stats->ready_count; i++) seen |= stats->ready[i] == ddp->order[place];
        if (!seen) order[count++] = ddp->order[place];
    }
}

/* Broadcasts rank 0's ready order and cuts new buckets from it. */
static int rebuild(tern_ddp *ddp, tern_error *err)
{
    char *side = tern__ddp_window_base(ddp, ddp->side_window);
    int *order = (int *)(side + ddp->order_extent.offset);
    write_order(ddp, order);
    int status = post_broadcast(ddp, &ddp->order_extent, 1, err);
    if (!status) status = wait_last(ddp, err);
    if (status) return status;
    memcpy(ddp->order, order, (size_t)ddp->leaf_count * sizeof(*order));
    ddp->rebuilt = true;
    return tern__bucket_plan(ddp, err);
}

/* Broadcasts rank 0's choices. */
static int tell_choices(tern_ddp *ddp, tern_error *err)
{
    if (!ddp->choices.is_due) return TERN_OK;
    tern__ddp_choices_put(ddp);
    int status = post_broadcast(ddp, &ddp->choices.extent, 1, err);
    if (!status) status = wait_last(ddp, err);
    if (!status) tern__ddp_choices_take(ddp);
    return status;
}

/* Notes whether all ranks were shadows, and the highest rank that was not: it has the latest model. */
static void take_tally(tern_ddp *ddp)
{
    const tern__tally *tally = ddp->group->backend->tally(ddp->channel, ddp->round.side_seq);
    int world = tern_group_size(ddp->group);
    ddp->over = tally->shadows == world;
    for (int rank = 0; rank < world; rank++)
        if (!tally->shadow[rank]) ddp->last_active = rank;
}

/* True if any rank has used the model; the same on all ranks. If none has, there is no ready order to learn
 * from. */
static bool has_gradients(const tern_ddp *ddp)
{
    bool any = false;
    for (int i = 0; i < ddp->leaf_count; i++) any |= ddp->seal->leaves[ddp->order[i]]->fresh;
    return any;
}

int tern__reducer_finish(tern_ddp *ddp, tern_error *err)
{
    int status = wait_last(ddp, err);
    if (status) return status;
    tern__straggler_done(ddp);
    bool idle = ddp->group->backend->tally(ddp->channel, ddp->round.side_seq)->idle;
    status = tern__side_take(ddp, err);
    if (!status && !idle) status = tern__compress_take(ddp, err);
    if (!status && !idle) status = tern__staged_take(ddp, err);
    if (!status) status = tern__away_take(ddp, err);
    take_tally(ddp);
    ddp->round.folded = 0;
    ddp->round.count = NAN;
    ddp->round.active = ddp->round.reached = false;
    if (!status) status = tern__checksum_check(ddp, err);
    if (!status) status = tell_choices(ddp, err);
    return status || ddp->rebuilt || idle || !has_gradients(ddp) ? status : rebuild(ddp, err);
}

static int end(tern__listener *self, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    ddp->round.is_inside = false;
    if (!ddp->round.active) return TERN_OK;
    int status = post_rest(ddp, err);
    if (!status) status = wait_last(ddp, err);
    if (status) return status;
    tern__stats_done(ddp);
    return tern__reducer_finish(ddp, err);
}

/* Refuses a scope of another group, with which each rank would silently train by itself. */
static int missed(tern__listener *self, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    int world = ddp->group->boot.world;
    ddp->round.reached = true;
    if (!ddp->sync || world == 1) return TERN_OK;
    tern__error_set(
        err, "tern_backward", TERN_E_STATE,
        "the scope does not have the group of a tern_ddp of %d ranks whose parameters this backward reaches, "
        "so their gradients would not be averaged: give tern_scope_new that group, or call "
        "tern_ddp_sync_set(ddp, false)",
        world);
    return tern__group_fail(ddp->group, err);
}

/* ---- shadows ---- */

int tern__reducer_shadow(tern_ddp *ddp, tern_error *err)
{
    for (int b = 0; b < ddp->bucket_count; b++) {
        ddp->buckets[b].waiting = 0;
        ddp->buckets[b].used = false;
    }
    ddp->round.reached = false;
    bool has_share = ddp->opts.divide_by_initial_world_size && ddp->opts.normaliser == TERN_NORMALISER_RANK;
    ddp->round.share = has_share ? 1 / ddp->opts.gradient_predivide_factor : 0;
    int status = open_round(ddp, NULL, err);
    return status ? status : post_rest(ddp, err);
}

const tern__listener tern__reducer = {.begin = begin, .ready = ready, .end = end, .missed = missed};
