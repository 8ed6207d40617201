/* work.c - a work on a device's memory: its meeting behind, and its part in the device.
 *
 * The device's part is asked for as soon as the work is posted, when other ranks may not have posted theirs:
 * a bucket goes over while backward computes the next. While NCCL connects the ranks for one of the first
 * works, which takes until all have asked for it, the next are queued and nobody waits: ranks that ask two
 * communicators in different order would wait for each other. A mean is a sum of each rank's values by a
 * factor of its own, weight / divisor, so it need not be known what the others weigh; what the shares come to
 * is known when the ranks have met, and if that is not the divisor, the step multiplies what has come by the
 * rest. In 16 bits the divisor is a power of 2, which loses nothing. Memory of weight 0 is zeroed rather than
 * multiplied: there may be a NaN in it. In an all_reduce the step multiplies by the factor, so that NCCL has
 * a plain sum, the only one for which it uses what NVSwitches add up and what is attached.
 *
 * Three kinds of works of a ddp wait for their meeting, in the queue, as the host may not: a broadcast,
 * because its root may be a shadow; what this rank is idle in, because others may be, too; and a mean in 16
 * bits that is weighted by counts, because a product by any number may not be one of 16 bits, but by the
 * count's part in all counts it is. */
#include "comm/nccl/nccl.h"

#include "comm/reduce.h"

/* ---- the meeting ---- */

static int meet(tern__nccl_work *work, const tern__post *post, tern_error *err)
{
    const tern__nccl *nccl = work->line->link->nccl;
    tern__post said = *post;
    said.total = post->total;
    for (int i = 0; !post->total && i < post->extent_count; i++) said.total += post->extents[i].count;
    said.extents = NULL;
    said.extent_count = 0;
    said.out = NULL;
    said.outs = NULL;
    said.kept = NULL;
    said.takes = said.gives = tern__kind_is_move(post->kind) ? nccl->nothing : NULL;
    said.only_meets = true;
    return nccl->behind->post(work->line->order, &said, &work->seq, err);
}

/* ---- factors ---- */

static bool is_mean(const tern__post *post)
{
    return tern__kind_reduces(post->kind) && post->op == TERN_AVG;
}

/* Only of an all_reduce may what a rank gives be written. */
static bool is_scaled_by_step(const tern__post *post)
{
    return is_mean(post) && post->kind == TERN__ALL_REDUCE;
}

static bool is_wide(const tern__post *post)
{
    return post->dtype == TERN_F32 || post->dtype == TERN_F64;
}

/* What a mean is divided by before it is known what the shares come to. */
static double divisor_of(const tern__post *post, int world)
{
    double power = 1;
    if (is_wide(post)) return is_scaled_by_step(post) ? 1 : world;
    while (2 * power <= world) power *= 2;
    return power;
}

/* What this rank's values are multiplied by. */
static double factor_of(const tern__nccl_work *work)
{
    double weight = work->post.weighted ? work->post.weight : 1;
    return is_mean(&work->post) ? weight / work->divisor : weight;
}

/* ---- the parts of a work ---- */

typedef struct part {
    char *at; /* of the extents */
    uint64_t count;
} part;

static part part_at(const tern__nccl *nccl, const tern__extent *e)
{
    return (part){nccl->windows[e->window & ~TERN__NCCL_AWAY].base + e->offset, e->count};
}

static part part_of(const tern__nccl *nccl, const tern__post *post, int i)
{
    return part_at(nccl, &post->extents[i]);
}

static char *behind(const part *p, const tern__post *post, uint64_t elements)
{
    return p->at + elements * tern_dtype_bytes(post->dtype);
}

/* Where this rank's result of a part is, and how many elements it has; 0: it has none. */
static part result_of(const tern__nccl *nccl, const tern__post *post, int i)
{
    int rank = nccl->group->boot.rank;
    uint64_t world = (uint64_t)nccl->group->boot.world;
    part p = part_of(nccl, post, i);
    if (post->kind == TERN__REDUCE && rank != post->root) p.count = 0;
    if (post->kind != TERN__REDUCE_SCATTER) return p;
    if (post->outs) return part_at(nccl, &post->outs[i]);
    p.count /= world;
    p.at = post->out ? post->out : behind(&p, post, (uint64_t)rank * p.count);
    return p;
}

/* This rank's result. */
static int scale(const tern__nccl_work *work, double factor, tern_error *err)
{
    const tern__nccl_link *link = work->line->link;
    const tern__post *post = &work->post;
    int status = TERN_OK;
    for (int i = 0; factor != 1 && i < post->extent_count && !status; i++) {
        part p = result_of(link->nccl, post, i);
        status = tern__reduce_scale(link->device, post->dtype, p.at, p.at, p.count, factor, err);
    }
    return status;
}

static int zero(const tern__nccl_work *work, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < work->post.extent_count && !status; i++) {
        part p = part_of(work->line->link->nccl, &work->post, i);
        status = tern__memory_zero(p.at, p.count * tern_dtype_bytes(work->post.dtype), err);
    }
    return status;
}

/* What this rank gives becomes what NCCL is to add. */
static int make_summand(const tern__nccl_work *work, tern_error *err)
{
    const tern__post *post = &work->post;
    if (post->kind == TERN__ALL_REDUCE && post->weighted && post->weight == 0) return zero(work, err);
    return is_scaled_by_step(post) ? scale(work, factor_of(work), err) : TERN_OK;
}

/* ---- the device's part ---- */

static tern__nccl_call call_of(const tern__nccl *nccl, const tern__nccl_work *work, int i)
{
    const tern__post *post = &work->post;
    uint64_t world = (uint64_t)nccl->group->boot.world;
    int rank = nccl->group->boot.rank;
    part p = part_of(nccl, post, i);
    bool weighs = !is_scaled_by_step(post) && (post->op == TERN_AVG || post->op == TERN_PREMUL_SUM);
    tern__nccl_call call = {.kind = TERN__NCCL_ALL_REDUCE,
                            .from = p.at,
                            .to = p.at,
                            .count = p.count,
                            .dtype = post->dtype,
                            .op = weighs          ? TERN_PREMUL_SUM
                                  : is_mean(post) ? TERN_SUM
                                                  : post->op,
                            .factor = factor_of(work),
                            .peer = post->roots ? post->roots[i] : post->root};
    if (post->kind == TERN__BROADCAST) call.kind = TERN__NCCL_BROADCAST;
    if (post->kind == TERN__REDUCE) call.kind = TERN__NCCL_REDUCE;
    if (post->kind == TERN__ALL_GATHER) {
        call.kind = TERN__NCCL_ALL_GATHER;
        call.count /= world;
        call.from = behind(&p, post, (uint64_t)rank * call.count);
    }
    if (post->kind == TERN__REDUCE_SCATTER) {
        call.kind = TERN__NCCL_REDUCE_SCATTER;
        call.count /= world;
        call.to = result_of(nccl, post, i).at;
    }
    return call;
}

static int run_extents(const tern__nccl_line *line, const tern__nccl_work *work, void *stream,
                       tern_error *err)
{
    const tern__nccl *nccl = line->link->nccl;
    int status = TERN_OK;
    for (int i = 0; i < work->post.extent_count && !status; i++) {
        tern__nccl_call call = call_of(nccl, work, i);
        if (call.count) status = nccl->plugin->run(line->comm, &call, stream, err);
    }
    return status;
}

static int run_moves(const tern__nccl_line *line, const tern__post *post, void *stream, tern_error *err)
{
    const tern__nccl_plugin *plugin = line->link->nccl->plugin;
    int status = TERN_OK;
    for (int rank = 0; rank < line->link->nccl->group->boot.world && !status; rank++) {
        tern__nccl_call send = {.kind = TERN__NCCL_SEND,
                                .from = post->gives[rank].to,
                                .count = post->gives[rank].count,
                                .dtype = post->dtype,
                                .peer = rank};
        tern__nccl_call recv = {.kind = TERN__NCCL_RECV,
                                .to = post->takes[rank].to,
                                .count = post->takes[rank].count,
                                .dtype = post->dtype,
                                .peer = rank};
        if (send.count) status = plugin->run(line->comm, &send, stream, err);
        if (!status && recv.count) status = plugin->run(line->comm, &recv, stream, err);
    }
    return status;
}

/* Whoever gave it up has told the group why, unless it was NCCL alone. */
static int fail_aborted(const tern_group *group, tern_error *err)
{
    int status = group->control ? tern__control_check(group->control, "tern_work_wait", err) : TERN_OK;
    if (status) return status;
    return tern__error_set(err, "tern_work_wait", TERN_E_PEER, "NCCL's communicator was given up");
}

static int run(tern__nccl_line *line, const tern__nccl_work *work, tern_error *err)
{
    const tern__post *post = &work->post;
    tern_device *device = line->link->device;
    tern__nccl *nccl = line->link->nccl;
    void *stream = device->backend->stream_native(device, line->stream);
    bool is_move = tern__kind_is_move(post->kind);
    pthread_mutex_lock(&nccl->lock);
    int status = line->comm ? nccl->plugin->begin(err) : fail_aborted(nccl->group, err);
    if (!status) {
        status = work->call ? nccl->plugin->run(line->comm, work->call, stream, err)
                 : is_move  ? run_moves(line, post, stream, err)
                            : run_extents(line, work, stream, err);
        int ended = nccl->plugin->end(line->comm, status ? NULL : err);
        if (!status) status = ended;
    }
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

/* Everything that the line is asked comes behind what the step was asked before. */
static int ask(tern__nccl_line *line, tern__nccl_work *work, tern_error *err)
{
    tern_device *device = line->link->device;
    const tern__device_backend *backend = device->backend;
    int status = backend->event_record(device, TERN__STREAM_STEP, line->ready, err);
    if (!status) status = backend->stream_wait(device, line->stream, line->ready, err);
    if (!status) status = run(line, work, err);
    if (status && status != TERN_PENDING) return status;
    line->is_pending = status == TERN_PENDING;
    line->asked = work;
    return TERN_OK;
}

/* It is in the stream. */
static int event(tern__nccl_line *line, tern_error *err)
{
    tern__nccl_work *work = line->asked;
    tern__nccl *nccl = line->link->nccl;
    tern_device *device = line->link->device;
    int place = (int)(line->launched % TERN__NCCL_EVENTS);
    int status = device->backend->event_record(device, line->stream, line->events[place], err);
    if (status) return status;
    pthread_mutex_lock(&nccl->lock);
    line->began[place] = 0;
    work->launched = ++line->launched;
    pthread_mutex_unlock(&nccl->lock);
    work->is_queued = false;
    line->asked = NULL;
    return TERN_OK;
}

/* ---- what waits for its meeting ---- */

/* Broadcasts of a ddp may have shadows, but nobody is one in the step of an optimizer. */
static bool is_counted(const tern__post *post)
{
    return post->counted && is_scaled_by_step(post) && !is_wide(post);
}

static bool is_held(const tern__post *post)
{
    if (post->kind == TERN__BROADCAST) return post->owner && post->bucket != TERN__SLICE_BUCKET;
    return post->idle || is_counted(post);
}

/* The highest rank that is no shadow takes the root's place; where there is none, nobody gives anything. */
static void find_root(tern__nccl_work *work, const tern__tally *tally)
{
    int world = work->line->link->nccl->group->boot.world;
    tern__post *post = &work->post;
    if (tally->shadows == world)
        post->extent_count = 0;
    else if (tally->shadow[post->root])
        for (post->root = world - 1; tally->shadow[post->root];) post->root--;
}

/* What it has waited for; TERN_PENDING: the ranks have not met. Whoever asks may come here meanwhile. */
static int release(tern__nccl_work *work, tern_error *err)
{
    const tern__nccl *nccl = work->line->link->nccl;
    int status = nccl->behind->test(work->line->order, work->seq, err);
    if (status || !work->is_held) return status;
    const tern__tally *tally = nccl->behind->tally(work->line->order, work->seq);
    work->is_held = false;
    if (tally->idle) work->post.extent_count = 0;
    if (is_counted(&work->post) && tally->shares > 0) work->divisor = tally->shares;
    if (is_mean(&work->post)) return make_summand(work, err);
    find_root(work, tally);
    return TERN_OK;
}

/* ---- the line's queue ---- */

int tern__nccl_line_advance(tern__nccl_line *line, tern_error *err)
{
    for (;;) {
        int status = tern__nccl_line_test(line, err);
        if (!status && line->asked) status = event(line, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
        tern__nccl_work *work = line->first;
        if (!work) return TERN_OK;
        if (work->is_held) status = release(work, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
        if (line->first != work) continue;
        line->first = work->next;
        if ((status = ask(line, work, err))) return status;
    }
}

int tern__nccl_work_launch(tern__nccl_work *work, tern_error *err)
{
    tern__nccl_line *line = work->line;
    work->next = NULL;
    work->is_queued = true;
    if (line->first)
        line->last->next = work;
    else
        line->first = work;
    line->last = work;
    return tern__nccl_line_advance(line, err);
}

void tern__nccl_work_drop(tern__nccl_work *work)
{
    tern__nccl_line *line = work->line;
    tern__nccl_work *before = NULL, *at = line ? line->first : NULL;
    for (; at && at != work; at = at->next) before = at;
    if (at && before) before->next = at->next;
    if (at && !before) line->first = at->next;
    if (at && line->last == at) line->last = before;
    if (line && line->asked == work) line->asked = NULL;
    work->line = NULL;
}

/* ---- posting ---- */

int tern__nccl_work_post(tern__nccl_work *work, tern__nccl_line *line, const tern__post *post,
                         tern_error *err)
{
    if (line->link->ends) return tern__nccl_fail_ended(err);
    work->line = line;
    work->post = *post;
    work->divisor = divisor_of(post, line->link->nccl->group->boot.world);
    int status = meet(work, post, err);
    if (status || post->only_meets) return status;
    work->is_held = is_held(post);
    if (!work->is_held) status = make_summand(work, err);
    return status ? status : tern__nccl_work_launch(work, err);
}

/* ---- finishing ---- */

/* Where the shares are none, there is no mean. */
static int scale_rest(const tern__nccl_work *work, tern_error *err)
{
    const tern__nccl_line *line = work->line;
    const tern__tally *tally = line->link->nccl->behind->tally(line->order, work->seq);
    bool has_mean = is_mean(&work->post) && tally->shares > 0;
    return has_mean ? scale(work, work->divisor / tally->shares, err) : TERN_OK;
}

static int is_launched(void *of, tern_error *err)
{
    const tern__nccl_work *work = of;
    int status = tern__nccl_line_advance(work->line, err);
    return !status && work->is_queued ? TERN_PENDING : status;
}

int tern__nccl_work_settle(tern__nccl_work *work, bool waits, tern_error *err)
{
    return waits ? tern__nccl_await(work->line->link->nccl, is_launched, work, "to begin a work", err)
                 : is_launched(work, err);
}

/* What the step does from here on comes after what the stream was asked so far. */
static int follow(const tern__nccl_line *line, uint64_t launched, tern_error *err)
{
    tern_device *device = line->link->device;
    int place = (int)((launched - 1) % TERN__NCCL_EVENTS);
    return device->backend->stream_wait(device, TERN__STREAM_STEP, line->events[place], err);
}

/* All ranks have met for it; but of a communicator that was given up nobody knows what it has done. */
int tern__nccl_work_finish(tern__nccl_work *work, tern_error *err)
{
    tern__nccl_line *line = work->line;
    tern__nccl *nccl = line->link->nccl;
    if (!work->launched) return TERN_OK;
    int place = (int)((work->launched - 1) % TERN__NCCL_EVENTS);
    pthread_mutex_lock(&nccl->lock);
    bool is_open = line->comm != NULL;
    line->began[place] = tern__now_ns();
    pthread_mutex_unlock(&nccl->lock);
    if (!is_open) return fail_aborted(nccl->group, err);
    int status = follow(line, work->launched, err);
    return status ? status : scale_rest(work, err);
}

/* ---- leaving ---- */

static bool is_of(const tern__nccl_work *work, const tern__nccl_channel *channel)
{
    return work >= channel->works && work < channel->works + channel->slots;
}

/* The next work that the line is asked meanwhile may be another channel's. */
static void see_into_lane(tern__nccl_line *line, const tern__nccl_channel *channel)
{
    tern__nccl_work_settle(line->asked, true, NULL);
    if (line->asked && is_of(line->asked, channel)) line->asked = NULL;
}

void tern__nccl_line_leave(tern__nccl_line *line, const tern__nccl_channel *channel)
{
    tern__nccl_work **at = &line->first;
    line->last = NULL;
    while (*at) {
        if (is_of(*at, channel)) {
            *at = (*at)->next;
            continue;
        }
        line->last = *at;
        at = &(*at)->next;
    }
    if (line->asked && is_of(line->asked, channel)) see_into_lane(line, channel);
    if (line->channel == channel) line->channel = NULL;
    if (line->launched) follow(line, line->launched, NULL);
}
