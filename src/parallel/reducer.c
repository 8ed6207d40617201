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
    bool counts = ddp->round.samples > 0 || ddp->round.weight == 0;
    for (int i = 0; i < bucket->count && !status; i++) {
        const tern__leaf *leaf = ddp->seal->leaves[ddp->order[bucket->first + i]];
        if (!leaf->fresh || !counts)
            status = tern__memory_zero(leaf->grad->view.data, tern__view_bytes(&leaf->grad->view), err);
    }
    return status;
}

/* Brings the next bucket's gradients to where they are reduced. */
static int put_bucket(tern_ddp *ddp, tern_error *err)
{
    const tern__bucket *bucket = &ddp->buckets[ddp->round.next_put];
    int status = bucket->used ? zero_missing(ddp, bucket, err) : TERN_OK;
    if (!status && bucket->used) status = tern__parts_call(ddp, TERN__DDP_PUT, err);
    ddp->round.next_put++;
    return status;
}

/* Notes when the first and the last bucket are posted. */
static void note_posted(tern_ddp *ddp, int bucket)
{
    bool is_last = bucket == ddp->bucket_count - 1;
    if (ddp->round.posted && !is_last && !ddp->group->trace) return;
    int64_t now = tern__now_ns();
    if (!ddp->round.posted) ddp->round.posted = now;
    if (is_last) ddp->round.arrived = now;
    tern__trace_add(ddp->group->trace,
                    &(tern__trace_event){.name = "bucket ready",
                                         .track = TERN__TRACK_BUCKETS,
                                         .began = now,
                                         .args = {{"bucket", bucket},
                                                  {"bytes", (int64_t)ddp->buckets[bucket].bytes},
                                                  {"backward", (int64_t)ddp->round.backward}}});
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
    note_posted(ddp, index);
    int status = tern__ddp_post(ddp, &work, index, err);
    ddp->round.side_seq = ddp->round.last_seq;
    return status;
}

/* TERN_PENDING: the next bucket may not be posted yet. */
static int test_next(tern_ddp *ddp, tern_error *err)
{
    return tern__parts_call(ddp, TERN__DDP_TEST, err);
}

static int post_arrived(tern_ddp *ddp, bool waits, tern_error *err)
{
    int status = TERN_OK;
    while (!status && ddp->round.next_bucket < ddp->round.next_put) {
        status = waits ? tern__ddp_await(ddp, test_next, err) : test_next(ddp, err);
        if (!status && ddp->round.next_bucket >= ddp->side_bucket)
            status = tern__parts_call(ddp, TERN__DDP_ARRIVE, err);
        if (!status) status = post_bucket(ddp, ddp->round.next_bucket++, err);
    }
    return status == TERN_PENDING ? TERN_OK : status;
}

static int post_ready(tern_ddp *ddp, tern_error *err)
{
    int status = post_arrived(ddp, false, err);
    while (!status && ddp->round.next_put < ddp->bucket_count &&
           ddp->buckets[ddp->round.next_put].waiting == 0) {
        status = put_bucket(ddp, err);
        if (!status) status = post_arrived(ddp, false, err);
    }
    return status;
}

static int post_rest(tern_ddp *ddp, tern_error *err)
{
    int status = post_ready(ddp, err);
    if (!status) status = post_arrived(ddp, true, err);
    return status ? status : tern__parts_call(ddp, TERN__DDP_POST, err);
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

/* Sets the weight and share of the posts from what this rank's gradients count for. */
static void weigh_posts(tern_ddp *ddp)
{
    tern__ddp_round *round = &ddp->round;
    round->share = round->samples / ddp->opts.gradient_predivide_factor;
    round->weight = round->samples > 0 ? round->share : round->reached ? 1 : 0;
}

static int start_posts(tern_ddp *ddp, tern_error *err)
{
    ddp->round.next_put = ddp->round.next_bucket = 0;
    ddp->round.posted = 0;
    tern__side_write(ddp);
    return tern__parts_call(ddp, TERN__DDP_START, err);
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

static int reducer_begin(tern__listener *self, const tern_tensor *loss, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    if (ddp->round.is_inside) return fail_inside(ddp, err);
    ddp->round.is_inside = true;
    ddp->round.backward++;
    ddp->round.folded++;
    ddp->round.active = ddp->sync;
    ddp->round.loss = loss;
    ddp->round.scope = loss->scope;
    ddp->round.samples = 1;
    tern__ddp_note(ddp);
    count_waiting(ddp);
    ddp->seal->is_asked |= ddp->round.used && loss->scope->asks;
    int status = tern__parts_call(ddp, TERN__DDP_BEGIN, err);
    if (!status && ddp->round.active) status = tern__group_check(ddp->group, "tern_backward", err);
    if (status || !ddp->round.active) return status;
    ddp->round.ready_count = 0;
    weigh_posts(ddp);
    status = start_posts(ddp, err);
    return status || ddp->opts.delay_all_reduce ? status : post_ready(ddp, err);
}

static int reducer_ready(tern__listener *self, tern__leaf *leaf, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    if (!ddp->round.active) return TERN_OK;
    ddp->ready[ddp->round.ready_count++] = leaf->index;
    ddp->buckets[ddp->bucket_of[leaf->index]].waiting--;
    if (ddp->opts.delay_all_reduce) return TERN_OK;
    int status = post_ready(ddp, err);
    return status ? status : ddp->group->root->progress(ddp->group, err);
}

/* ---- when backward ends ---- */

/* Notes whether all ranks were shadows, and the highest rank that was not: it has the latest model. */
static void take_tally(tern_ddp *ddp)
{
    const tern__tally *tally = tern__ddp_tally(ddp, ddp->round.side_seq);
    int world = tern_group_size(ddp->group);
    ddp->round.is_idle = tally->idle;
    ddp->over = tally->shadows == world;
    for (int rank = 0; rank < world; rank++)
        if (!tally->shadow[rank]) ddp->last_active = rank;
}

bool tern__ddp_has_gradients(const tern_ddp *ddp)
{
    bool any = false;
    for (int i = 0; i < ddp->leaf_count; i++) any |= ddp->seal->leaves[ddp->order[i]]->fresh;
    return any;
}

int tern__reducer_finish(tern_ddp *ddp, tern_error *err)
{
    int status = tern__ddp_wait(ddp, err);
    if (status) return status;
    ddp->round.ended = tern__now_ns();
    take_tally(ddp);
    tern__side_take(ddp);
    ddp->round.folded = 0;
    ddp->round.active = ddp->round.reached = false;
    status = tern__parts_call(ddp, TERN__DDP_TAKE, err);
    /* If no rank has used the model, there is no ready order to learn from. */
    return status || ddp->rebuilt || ddp->round.is_idle || !tern__ddp_has_gradients(ddp)
               ? status
               : tern__bucket_rebuild(ddp, err);
}

static int reducer_end(tern__listener *self, tern_error *err)
{
    tern_ddp *ddp = ddp_of(self);
    ddp->round.is_inside = false;
    if (!ddp->round.active) return TERN_OK;
    int status = post_rest(ddp, err);
    return status ? status : tern__reducer_finish(ddp, err);
}

/* Refuses a scope of another group, with which each rank would silently train by itself. */
static int reducer_missed(tern__listener *self, tern_error *err)
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
    ddp->round.loss = NULL;
    int status = start_posts(ddp, err);
    return status ? status : post_rest(ddp, err);
}

const tern__listener tern__reducer = {
    .begin = reducer_begin, .ready = reducer_ready, .end = reducer_end, .missed = reducer_missed};
