/* comm.c - a communicator of NCCL's, and the stream of its works. */
#include "comm/move/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

enum { blocks_of_messages = 8 };

/* ---- progress ---- */

/* A communicator that the watch has aborted stays pending: the group knows why, or learns it soon, and says
 * so. */
int tern__nccl_comm_test(tern__nccl_comm *comm, tern_error *err)
{
    tern__nccl *nccl = comm->gpu->nccl;
    int status = TERN_PENDING;
    if (!comm->is_pending) return TERN_OK;
    pthread_mutex_lock(&nccl->lock);
    if (comm->handle)
        status = nccl->plugin->test(comm->handle, err);
    else if (!nccl->group->control)
        status = tern__error_set(err, "tern_work_wait", TERN_E_PEER, "NCCL's communicator was given up");
    pthread_mutex_unlock(&nccl->lock);
    comm->is_pending = status == TERN_PENDING;
    return status;
}

/* ---- life ---- */

/* NCCL enqueues a work whenever it is ready. If two communicators shared a stream, their works might be
 * enqueued in a different order on each rank, and the devices would deadlock. */
tern__nccl_comm *tern__nccl_comm_new(tern__nccl_device *gpu, tern_error *err)
{
    tern__nccl *nccl = gpu->nccl;
    tern__nccl_comm *comm = tern__alloc(sizeof(*comm), "tern_ddp_new", err), **at = &gpu->comms;
    if (!comm) return NULL;
    *comm = (tern__nccl_comm){.gpu = gpu, .number = 1};
    for (; *at; at = &(*at)->next) comm->number++;
    if (gpu->device->backend->stream_new(gpu->device, &comm->stream, err)) {
        tern__free(comm);
        return NULL;
    }
    pthread_mutex_lock(&nccl->lock);
    *at = comm;
    pthread_mutex_unlock(&nccl->lock);
    return comm;
}

/* The kernels of messages wait on the device for those of their peers. So the kernels of messages with many
 * ranks must fit on the device at the same time, and none may take many blocks. */
int tern__nccl_comm_begin(tern__nccl_comm *comm, int rank, int world, const char id[TERN__NCCL_ID],
                          tern_error *err)
{
    const tern__nccl_device *gpu = comm->gpu;
    comm->ready = gpu->device->backend->event_new(gpu->device, err);
    if (!comm->ready) return err->code;
    int blocks = gpu == gpu->nccl->mail_device ? blocks_of_messages : 0;
    void *handle = gpu->nccl->plugin->open(gpu->device->index, rank, world, blocks, id, err);
    if (!handle) return err->code;
    pthread_mutex_lock(&gpu->nccl->lock);
    comm->handle = handle;
    comm->is_pending = true;
    pthread_mutex_unlock(&gpu->nccl->lock);
    return TERN_OK;
}

static int begin_is_done(void *comm, tern_error *err)
{
    return tern__nccl_comm_test(comm, err);
}

int tern__nccl_comm_await(tern__nccl_comm *comm, const char *what, tern_error *err)
{
    const tern__nccl_goal goal = {begin_is_done, comm, what, tern__nccl_comm_peer(comm)};
    return tern__nccl_await(comm->gpu->nccl, &goal, err);
}

int tern__nccl_comm_open(tern__nccl_comm *comm, const char id[TERN__NCCL_ID], tern_error *err)
{
    const tern__bootstrap *boot = &comm->gpu->nccl->group->boot;
    int status = tern__nccl_comm_begin(comm, boot->rank, boot->world, id, err);
    return status ? status : tern__nccl_comm_await(comm, "to join all ranks", err);
}

/* ---- aborting ---- */

/* Takes the handles from all communicators and returns these, chained by `taken`. */
static tern__nccl_comm *take_all(const tern__nccl *nccl)
{
    tern__nccl_comm *taken = NULL;
    for (tern__nccl_device *gpu = tern__nccl_device_first(nccl); gpu;
         gpu = tern__nccl_device_next(nccl, gpu)) {
        for (tern__nccl_comm *comm = gpu->comms; comm; comm = comm->next) {
            if (!comm->handle) continue;
            comm->given_up = comm->handle;
            comm->handle = NULL;
            comm->taken = taken;
            taken = comm;
        }
    }
    return taken;
}

/* Aborts all as one operation: an abort may wait for its device, on which another communicator hangs. NCCL
 * may also wait for a peer that is stopped. The lock is released meanwhile, so that those who wait for a work
 * learn why it failed. */
void tern__nccl_abort(tern__nccl *nccl)
{
    tern__nccl_comm *taken = take_all(nccl);
    if (!taken) return;
    nccl->aborts++;
    pthread_mutex_unlock(&nccl->lock);
    int status = nccl->plugin->begin(NULL);
    for (const tern__nccl_comm *comm = taken; comm; comm = comm->taken) nccl->plugin->abort(comm->given_up);
    if (!status) nccl->plugin->end(NULL, NULL);
    pthread_mutex_lock(&nccl->lock);
    nccl->aborts--;
    pthread_cond_broadcast(&nccl->changed);
}

bool tern__nccl_comm_is_open(const tern__nccl_comm *comm)
{
    tern__nccl *nccl = comm->gpu->nccl;
    pthread_mutex_lock(&nccl->lock);
    bool is_open = comm->handle != NULL;
    pthread_mutex_unlock(&nccl->lock);
    return is_open;
}

static bool has_failed(const tern_group *group)
{
    return group->root->error.code || (group->control && !tern__control_is_healthy(group->control));
}

void tern__nccl_abort_failed(tern__nccl *nccl)
{
    pthread_mutex_lock(&nccl->lock);
    if (has_failed(nccl->group)) tern__nccl_abort(nccl);
    while (nccl->aborts) pthread_cond_wait(&nccl->changed, &nccl->lock);
    pthread_mutex_unlock(&nccl->lock);
}

/* ---- the end ---- */

/* Tells the peers that this rank waits for its device. */
static int await_device(const tern__nccl_comm *comm, tern__device_event *last)
{
    const tern__nccl *nccl = comm->gpu->nccl;
    tern_device *device = comm->gpu->device;
    char what[128];
    snprintf(what, sizeof(what), "to finish its work %llu on %s", (unsigned long long)comm->launched,
             device->name);
    tern__nccl_say(nccl, &(tern__nccl_goal){.what = what, .peer = tern__nccl_comm_peer(comm)});
    int status = device->backend->event_wait(device, last, NULL);
    if (!status) tern__nccl_forget(nccl);
    return status;
}

/* Waits while the watch runs, which aborts a work that hangs. After a failure the event may never come. */
int tern__nccl_comm_drain(const tern__nccl_comm *comm)
{
    tern_device *device = comm->gpu->device;
    tern__device_event *last = comm->events[(comm->launched + TERN__NCCL_EVENTS - 1) % TERN__NCCL_EVENTS];
    if (!comm->launched) return TERN_OK;
    if (has_failed(comm->gpu->nccl->group)) return TERN_E_PEER;
    if (!device->backend->event_query(device, last, NULL)) return TERN_OK;
    return await_device(comm, last);
}

static void free_stream(tern__nccl_comm *comm)
{
    tern_device *device = comm->gpu->device;
    if (comm->ready) device->backend->event_free(device, comm->ready);
    for (int i = 0; i < TERN__NCCL_EVENTS; i++)
        if (comm->events[i]) device->backend->event_free(device, comm->events[i]);
    device->backend->stream_free(device, comm->stream);
}

void tern__nccl_comm_finalize(tern__nccl_comm *comm)
{
    tern__nccl *nccl = comm->gpu->nccl;
    if (comm->is_final || comm->is_pending || tern__nccl_comm_drain(comm) || has_failed(nccl->group)) return;
    pthread_mutex_lock(&nccl->lock);
    int status = comm->handle ? nccl->plugin->finalize(comm->handle, NULL) : TERN_OK;
    pthread_mutex_unlock(&nccl->lock);
    comm->is_pending = status == TERN_PENDING;
    comm->is_final = comm->is_pending || !status;
}

/* A program may close a device before the groups whose channels have works on it. */
static void end_works(const tern__nccl_comm *comm)
{
    for (tern__nccl_channel *c = comm->gpu->nccl->channels; c; c = c->next)
        for (uint64_t i = 0; i < c->slots; i++) {
            tern__nccl_work *work = &c->works[i];
            if (work->comm != comm) continue;
            work->comm = NULL;
            work->is_ended = true;
        }
}

/* The communicator is off its device's list already. */
void *tern__nccl_comm_free(tern__nccl_comm *comm)
{
    const tern__nccl *nccl = comm->gpu->nccl;
    bool is_over = comm->is_final && !comm->is_pending && !has_failed(nccl->group);
    void *handle = comm->handle;
    if (handle && !is_over) nccl->plugin->abort(handle);
    free_stream(comm);
    end_works(comm);
    tern__free(comm);
    return is_over ? handle : NULL;
}

/* ---- what its users share ---- */

int tern__nccl_tell(tern__nccl *nccl, void *all, size_t each, tern_error *err)
{
    size_t bytes = (size_t)nccl->group->boot.world * each, own = (size_t)nccl->group->boot.rank * each;
    uint64_t seq;
    uint32_t window;
    int status = nccl->behind->window_open(nccl->state, &(tern__window_opts){.bytes = bytes}, &window, err);
    if (status) return status;
    char *seen = nccl->behind->window_at(nccl->state, window, nccl->group->boot.rank);
    memcpy(seen + own, (const char *)all + own, each);
    const tern__extent extent = {window, 0, bytes};
    const tern__post post = {
        .kind = TERN__ALL_GATHER, .dtype = TERN_U8, .extents = &extent, .extent_count = 1};
    status = nccl->behind->post(nccl->order, &post, &seq, err);
    if (!status) status = nccl->behind->wait(nccl->order, seq, err);
    if (!status) memcpy(all, seen, bytes);
    nccl->behind->window_close(nccl->state, window);
    return status;
}

int tern__nccl_fail_ended(tern_error *err)
{
    return tern__error_set(err, "tern_nccl", TERN_E_STATE, "the device was closed before this was done");
}
