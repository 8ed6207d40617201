/* work.c - a work on device memory: its meeting through the back end behind, and its part on the device.
 *
 * The device's part is launched as soon as the work is posted, before other ranks have posted theirs: a
 * bucket is transferred while backward computes the next. NCCL connects the ranks for the first works, which
 * takes until all ranks have launched them. Meanwhile further works are queued and the host does not wait:
 * ranks that launch works in two communicators in different order would wait for each other.
 *
 * A mean is a sum of each rank's values times that rank's factor, weight / divisor, so a rank need not know
 * the weights of the others. The sum of the shares is known when the ranks have met. If it is not the
 * divisor, the step scales the result by the ratio. In 16 bits the divisor is a power of 2, so dividing is
 * exact. Memory of weight 0 is zeroed and not multiplied, since it may hold a NaN. In an all_reduce the step
 * multiplies by the factor, so that NCCL computes a plain sum: only for that it uses the reduction in
 * NVSwitches and registered memory.
 *
 * Three kinds of a ddp's works stay in the queue until the ranks have met, since the host must not wait: a
 * broadcast, because its root may be a shadow; a work in which this rank is idle, because all others may be
 * idle as well; and a mean in 16 bits weighted by counts, because values times a count may overflow 16 bits,
 * while values times the count's share of all counts do not. */
#include "comm/move/nccl/nccl.h"

#include "comm/move/reduce.h"

#include <stdio.h>

/* ---- the meeting ---- */

/* Returns the elements of the call. */
static uint64_t total_of(const tern__post *post)
{
    uint64_t total = post->total;
    for (int i = 0; !post->total && i < post->extent_count; i++) total += post->extents[i].count;
    return total;
}

static int work_meet(tern__nccl_work *work, tern_error *err)
{
    const tern__nccl *nccl = work->comm->gpu->nccl;
    const tern__post *post = &work->post;
    tern__post said = *post;
    said.extents = NULL;
    said.extent_count = 0;
    said.out = NULL;
    said.outs = NULL;
    said.kept = NULL;
    said.takes = said.gives = tern__kind_is_move(post->kind) ? nccl->nothing : NULL;
    said.only_meets = true;
    return nccl->behind->post(work->comm->order, &said, &work->seq, err);
}

/* ---- factors ---- */

static bool is_mean(const tern__post *post)
{
    return tern__kind_reduces(post->kind) && post->op == TERN_AVG;
}

/* Only an all_reduce may overwrite its input, which is where the result goes. */
static bool is_scaled_by_step(const tern__post *post)
{
    return is_mean(post) && post->kind == TERN__ALL_REDUCE;
}

static bool is_wide(const tern__post *post)
{
    return post->dtype == TERN_F32 || post->dtype == TERN_F64;
}

/* The divisor of a mean, chosen before the sum of the shares is known. */
static double divisor_of(const tern__post *post, int world)
{
    double power = 1;
    if (is_wide(post)) return is_scaled_by_step(post) ? 1 : world;
    while (2 * power <= world) power *= 2;
    return power;
}

/* The factor of this rank's values. */
static double factor_of(const tern__nccl_work *work)
{
    double weight = work->post.terms.weighted ? work->post.terms.weight : 1;
    return is_mean(&work->post) ? weight / work->divisor : weight;
}

/* ---- the parts of a work ---- */

typedef struct part {
    char *at;
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

static char *order_behind(const part *p, const tern__post *post, uint64_t elements)
{
    return p->at + elements * tern_dtype_bytes(post->dtype);
}

/* Returns this rank's result of a part; count 0: it has none. */
static part result_of(const tern__nccl *nccl, const tern__post *post, int i)
{
    int rank = nccl->group->boot.rank;
    uint64_t world = (uint64_t)nccl->group->boot.world;
    part p = part_of(nccl, post, i);
    if (post->kind == TERN__REDUCE && rank != post->root) p.count = 0;
    if (post->kind != TERN__REDUCE_SCATTER) return p;
    if (post->outs) return part_at(nccl, &post->outs[i]);
    p.count /= world;
    p.at = post->out ? post->out : order_behind(&p, post, (uint64_t)rank * p.count);
    return p;
}

/* Scales this rank's result. */
static int scale_result(const tern__nccl_work *work, double factor, tern_error *err)
{
    const tern__nccl_device *gpu = work->comm->gpu;
    const tern__post *post = &work->post;
    int status = TERN_OK;
    for (int i = 0; factor != 1 && i < post->extent_count && !status; i++) {
        part p = result_of(gpu->nccl, post, i);
        status = tern__reduce_scale(gpu->device, post->dtype, p.at, p.at, p.count, factor, err);
    }
    return status;
}

static int zero_input(const tern__nccl_work *work, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < work->post.extent_count && !status; i++) {
        part p = part_of(work->comm->gpu->nccl, &work->post, i);
        status = tern__memory_zero(p.at, p.count * tern_dtype_bytes(work->post.dtype), err);
    }
    return status;
}

/* Turns this rank's input into the summand that NCCL adds. */
static int make_summand(const tern__nccl_work *work, tern_error *err)
{
    const tern__post *post = &work->post;
    if (post->kind == TERN__ALL_REDUCE && post->terms.weighted && post->terms.weight == 0)
        return zero_input(work, err);
    return is_scaled_by_step(post) ? scale_result(work, factor_of(work), err) : TERN_OK;
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
        call.from = order_behind(&p, post, (uint64_t)rank * call.count);
    }
    if (post->kind == TERN__REDUCE_SCATTER) {
        call.kind = TERN__NCCL_REDUCE_SCATTER;
        call.count /= world;
        call.to = result_of(nccl, post, i).at;
    }
    return call;
}

static int run_extents(const tern__nccl_comm *comm, const tern__nccl_work *work, void *stream,
                       tern_error *err)
{
    const tern__nccl *nccl = comm->gpu->nccl;
    int status = TERN_OK;
    for (int i = 0; i < work->post.extent_count && !status; i++) {
        tern__nccl_call call = call_of(nccl, work, i);
        if (call.count) status = nccl->plugin->run(comm->handle, &call, stream, err);
    }
    return status;
}

static int run_moves(const tern__nccl_comm *comm, const tern__post *post, void *stream, tern_error *err)
{
    const tern__nccl_plugin *plugin = comm->gpu->nccl->plugin;
    int status = TERN_OK;
    for (int rank = 0; rank < comm->gpu->nccl->group->boot.world && !status; rank++) {
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
        if (send.count) status = plugin->run(comm->handle, &send, stream, err);
        if (!status && recv.count) status = plugin->run(comm->handle, &recv, stream, err);
    }
    return status;
}

/* The communicator was aborted. The group usually has the reason. */
static int fail_aborted(const tern_group *group, tern_error *err)
{
    int status = group->control ? tern__control_check(group->control, "tern_work_wait", err) : TERN_OK;
    if (status) return status;
    return tern__error_set(err, "tern_work_wait", TERN_E_PEER, "NCCL's communicator was given up");
}

static int run_calls(tern__nccl_comm *comm, const tern__nccl_work *work, tern_error *err)
{
    const tern__post *post = &work->post;
    tern_device *device = comm->gpu->device;
    tern__nccl *nccl = comm->gpu->nccl;
    void *stream = device->backend->stream_native(device, comm->stream);
    bool is_move = tern__kind_is_move(post->kind);
    pthread_mutex_lock(&nccl->lock);
    int status = comm->handle ? nccl->plugin->begin(err) : fail_aborted(nccl->group, err);
    if (!status) {
        status = work->call ? nccl->plugin->run(comm->handle, work->call, stream, err)
                 : is_move  ? run_moves(comm, post, stream, err)
                            : run_extents(comm, work, stream, err);
        int ended = nccl->plugin->end(comm->handle, status ? NULL : err);
        if (!status) status = ended;
    }
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

/* Gives the work to NCCL, after everything that the step's stream has been given. */
static int ask_nccl(tern__nccl_comm *comm, tern__nccl_work *work, tern_error *err)
{
    tern_device *device = comm->gpu->device;
    const tern__device_backend *backend = device->backend;
    int status = backend->event_record(device, TERN__STREAM_STEP, comm->ready, err);
    if (!status) status = backend->stream_wait(device, comm->stream, comm->ready, err);
    if (!status) status = run_calls(comm, work, err);
    if (status && status != TERN_PENDING) return status;
    comm->is_pending = status == TERN_PENDING;
    comm->asked = work;
    return TERN_OK;
}

static int record_event(tern__nccl_comm *comm, int place, tern_error *err)
{
    tern_device *device = comm->gpu->device;
    tern__device_event **event = &comm->events[place];
    if (!*event && !(*event = device->backend->event_new(device, err))) return TERN_E_SYSTEM;
    return device->backend->event_record(device, comm->stream, *event, err);
}

/* Records the event after the work that NCCL has enqueued in the stream. */
static int record_work(tern__nccl_comm *comm, tern_error *err)
{
    tern__nccl_work *work = comm->asked;
    tern__nccl *nccl = comm->gpu->nccl;
    int place = (int)(comm->launched % TERN__NCCL_EVENTS);
    int status = record_event(comm, place, err);
    if (status) return status;
    pthread_mutex_lock(&nccl->lock);
    comm->began[place] = 0;
    work->launched = ++comm->launched;
    pthread_mutex_unlock(&nccl->lock);
    work->is_queued = false;
    comm->asked = NULL;
    return TERN_OK;
}

/* ---- works that wait for their meeting ---- */

/* A mean in 16 bits that is weighted by counts. */
static bool is_counted(const tern__post *post)
{
    return post->terms.counted && is_scaled_by_step(post) && !is_wide(post);
}

static bool is_held(const tern__post *post)
{
    if (post->kind == TERN__BROADCAST) return post->label.kind && post->label.kind->has_shadows;
    return post->terms.idle || is_counted(post);
}

/* A root that is a shadow is replaced by the highest rank that is not one. If all ranks are shadows, nothing
 * is sent. */
static void find_root(tern__nccl_work *work, const tern__tally *tally)
{
    int world = work->comm->gpu->nccl->group->boot.world;
    tern__post *post = &work->post;
    if (tally->shadows == world)
        post->extent_count = 0;
    else if (tally->shadow[post->root])
        for (post->root = world - 1; tally->shadow[post->root];) post->root--;
}

/* Prepares a held work for launching; TERN_PENDING: the ranks have not met. The test may enter this function
 * again for the same work. */
static int release_held(tern__nccl_work *work, tern_error *err)
{
    const tern__nccl *nccl = work->comm->gpu->nccl;
    int status = nccl->behind->test(work->comm->order, work->seq, err);
    if (status || !work->is_held) return status;
    const tern__tally *tally = nccl->behind->tally(work->comm->order, work->seq);
    work->is_held = false;
    if (tally->idle) work->post.extent_count = 0;
    if (is_counted(&work->post) && tally->shares > 0) work->divisor = tally->shares;
    if (is_mean(&work->post)) return make_summand(work, err);
    find_root(work, tally);
    return TERN_OK;
}

/* ---- the queue ---- */

int tern__nccl_comm_advance(tern__nccl_comm *comm, tern_error *err)
{
    for (;;) {
        int status = tern__nccl_comm_test(comm, err);
        if (!status && comm->asked) status = record_work(comm, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
        tern__nccl_work *work = comm->first;
        if (!work) return TERN_OK;
        if (work->is_held) status = release_held(work, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
        if (comm->first != work) continue;
        comm->first = work->next;
        if ((status = ask_nccl(comm, work, err))) return status;
    }
}

int tern__nccl_work_launch(tern__nccl_work *work, tern_error *err)
{
    tern__nccl_comm *comm = work->comm;
    work->next = NULL;
    work->is_queued = true;
    if (comm->first)
        comm->last->next = work;
    else
        comm->first = work;
    comm->last = work;
    return tern__nccl_comm_advance(comm, err);
}

void tern__nccl_work_drop(tern__nccl_work *work)
{
    tern__nccl_comm *comm = work->comm;
    tern__nccl_work *before = NULL, *at = comm ? comm->first : NULL;
    for (; at && at != work; at = at->next) before = at;
    if (at && before) before->next = at->next;
    if (at && !before) comm->first = at->next;
    if (at && comm->last == at) comm->last = before;
    if (comm && comm->asked == work) comm->asked = NULL;
    work->comm = NULL;
}

/* ---- posting ---- */

int tern__nccl_work_post(tern__nccl_work *work, tern__nccl_comm *comm, const tern__post *post,
                         tern_error *err)
{
    if (comm->gpu->ends) return tern__nccl_fail_ended(err);
    work->comm = comm;
    work->post = *post;
    work->post.total = total_of(post);
    work->divisor = divisor_of(post, comm->gpu->nccl->group->boot.world);
    int status = work_meet(work, err);
    if (status || post->only_meets) return status;
    work->is_held = is_held(post);
    if (!work->is_held) status = make_summand(work, err);
    return status ? status : tern__nccl_work_launch(work, err);
}

/* ---- finishing ---- */

/* Scales a mean whose shares did not add up to the divisor. Without shares there is no mean. */
static int scale_rest(const tern__nccl_work *work, tern_error *err)
{
    const tern__nccl_comm *comm = work->comm;
    const tern__tally *tally = comm->gpu->nccl->behind->tally(comm->order, work->seq);
    bool has_mean = is_mean(&work->post) && tally->shares > 0;
    return has_mean ? scale_result(work, work->divisor / tally->shares, err) : TERN_OK;
}

static int is_launched(void *of, tern_error *err)
{
    const tern__nccl_work *work = of;
    int status = tern__nccl_comm_advance(work->comm, err);
    return !status && work->is_queued ? TERN_PENDING : status;
}

/* The extents may be gone: the work's channel may be closing. */
static int await_launch(tern__nccl_work *work, tern_error *err)
{
    tern__desc desc;
    tern__post post = work->post;
    char text[TERN__WORK_TEXT], what[TERN__WORK_TEXT + 16];
    post.extent_count = 0;
    tern__desc_write(&desc, &post);
    tern__desc_text(&desc, work->seq, text, sizeof(text));
    snprintf(what, sizeof(what), "to begin %s", text);
    const tern__nccl_goal goal = {is_launched, work, what, -1};
    return tern__nccl_await(work->comm->gpu->nccl, &goal, err);
}

int tern__nccl_work_settle(tern__nccl_work *work, bool waits, tern_error *err)
{
    int status = is_launched(work, err);
    return waits && status == TERN_PENDING ? await_launch(work, err) : status;
}

/* Makes the step's stream wait for work number `launched`. */
static int follow_step(const tern__nccl_comm *comm, uint64_t launched, tern_error *err)
{
    tern_device *device = comm->gpu->device;
    int place = (int)((launched - 1) % TERN__NCCL_EVENTS);
    return device->backend->stream_wait(device, TERN__STREAM_STEP, comm->events[place], err);
}

/* All ranks have met for the work. If the communicator was aborted, its result is unknown. A later work, for
 * which they may not have met, may have taken over the event. */
int tern__nccl_work_finish(tern__nccl_work *work, tern_error *err)
{
    tern__nccl_comm *comm = work->comm;
    tern__nccl *nccl = comm->gpu->nccl;
    if (!work->launched) return TERN_OK;
    int place = (int)((work->launched - 1) % TERN__NCCL_EVENTS);
    pthread_mutex_lock(&nccl->lock);
    bool is_open = comm->handle != NULL;
    if (comm->launched - work->launched < TERN__NCCL_EVENTS) comm->began[place] = tern__now_ns();
    pthread_mutex_unlock(&nccl->lock);
    if (!is_open) return fail_aborted(nccl->group, err);
    int status = follow_step(comm, work->launched, err);
    return status ? status : scale_rest(work, err);
}

/* ---- leaving ---- */

static bool is_of(const tern__nccl_work *work, const tern__nccl_channel *channel)
{
    return work >= channel->works && work < channel->works + channel->slots;
}

/* Waits until NCCL has enqueued the work it was given. By then it may have been given another channel's. */
static void see_into_stream(tern__nccl_comm *comm, const tern__nccl_channel *channel)
{
    tern_error why = {0};
    tern__nccl_work_settle(comm->asked, true, &why);
    if (comm->asked && is_of(comm->asked, channel)) comm->asked = NULL;
}

void tern__nccl_comm_leave(tern__nccl_comm *comm, const tern__nccl_channel *channel)
{
    tern__nccl_work **at = &comm->first;
    comm->last = NULL;
    while (*at) {
        if (is_of(*at, channel)) {
            *at = (*at)->next;
            continue;
        }
        comm->last = *at;
        at = &(*at)->next;
    }
    if (comm->asked && is_of(comm->asked, channel)) see_into_stream(comm, channel);
    if (comm->channel == channel) comm->channel = NULL;
    if (comm->launched) follow_step(comm, comm->launched, NULL);
}
