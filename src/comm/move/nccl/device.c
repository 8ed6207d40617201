/* device.c - a device of this rank in a group: opens its communicators with the other ranks and closes them.
 */
#include "comm/move/nccl/nccl.h"

#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* What a rank tells the others about its GPU. */
typedef struct info {
    unsigned char gpu[TERN__NCCL_GPU];
    char name[TERN__DEVICE_NAME];
    uint64_t spare; /* number of its first communicator without a channel; 0: none */
} info;

/* ---- meeting ---- */

/* NCCL would fail as well, but without saying which ranks share a GPU. All ranks come to the same result. */
static int check_gpus(const tern__nccl *nccl, const info *infos, tern_error *err)
{
    char one[128], other[128];
    for (int b = 1; b < nccl->group->boot.world; b++) {
        for (int a = 0; a < b; a++) {
            if (memcmp(infos[a].gpu, infos[b].gpu, TERN__NCCL_GPU)) continue;
            tern__group_describe(nccl->group, a, one, sizeof(one));
            tern__group_describe(nccl->group, b, other, sizeof(other));
            return tern__error_set(err, "tern_ddp_new", TERN_E_UNSUPPORTED,
                                   "%s and %s use the same GPU (%s, %s), and NCCL needs one GPU per rank: "
                                   "give them different devices, or choose another back end "
                                   "(TERN_BACKEND=gloo, or tern_group_opts.backend)",
                                   one, other, infos[a].name, infos[b].name);
        }
    }
    return TERN_OK;
}

/* Returns the first communicator whose channel was closed. A device's first communicator has no channel, but
 * is never spare. */
static tern__nccl_comm *find_spare(const tern__nccl_device *gpu)
{
    tern__nccl_comm *comm = gpu->comms ? gpu->comms->next : NULL;
    while (comm && comm->channel) comm = comm->next;
    return comm;
}

static int introduce_gpu(const tern__nccl_device *gpu, info *infos, tern_error *err)
{
    tern__nccl *nccl = gpu->nccl;
    const tern_device *device = gpu->device;
    const tern__nccl_comm *spare = find_spare(gpu);
    info *own = &infos[nccl->group->boot.rank];
    own->spare = spare ? spare->number : 0;
    snprintf(own->name, sizeof(own->name), "%s", device->name);
    int status = nccl->plugin->gpu(device->index, own->gpu, err);
    if (!status && nccl->group->boot.world > 1) status = tern__nccl_tell(nccl, infos, sizeof(*infos), err);
    return status ? status : check_gpus(nccl, infos, err);
}

/* ---- communicators ---- */

/* Returns the spare communicator if all ranks have the same one to spare; else NULL. */
static tern__nccl_comm *spare_agreed(const tern__nccl_device *gpu, const info *infos)
{
    for (int rank = 1; rank < gpu->nccl->group->boot.world; rank++)
        if (infos[rank].spare != infos[0].spare) return NULL;
    return find_spare(gpu);
}

/* Rank 0 makes the id by which the others find it. All must use it, since NCCL listens until they have. */
static int tell_id(tern__nccl *nccl, char ids[], tern_error *err)
{
    int status = nccl->group->boot.rank ? TERN_OK : nccl->plugin->id(ids, err);
    if (status || nccl->group->boot.world == 1) return status;
    return tern__nccl_tell(nccl, ids, TERN__NCCL_ID, err);
}

/* Opens a new communicator, together with all ranks. */
static tern__nccl_comm *comm_new(tern__nccl_device *gpu, const tern__nccl_channel *channel, tern_error *err)
{
    char *ids = tern__alloc((size_t)gpu->nccl->group->boot.world * TERN__NCCL_ID, "tern_ddp_new", err);
    if (!ids) return NULL;
    tern__nccl_comm *comm = tell_id(gpu->nccl, ids, err) ? NULL : tern__nccl_comm_new(gpu, err);
    if (comm) comm->channel = channel;
    int status = comm ? tern__nccl_comm_open(comm, ids, err) : TERN_OK;
    tern__free(ids);
    return status ? NULL : comm;
}

/* Reuses a spare communicator or opens a new one. A communicator is only closed with its device, since all
 * ranks would have to close it together. */
static tern__nccl_comm *open_comm(tern__nccl_device *gpu, void *order, const tern__nccl_channel *channel,
                                  tern_error *err)
{
    size_t world = (size_t)gpu->nccl->group->boot.world;
    info *infos = tern__alloc(world * sizeof(*infos), "tern_ddp_new", err);
    if (!infos) return NULL;
    int status = introduce_gpu(gpu, infos, err);
    tern__nccl_comm *comm = status ? NULL : spare_agreed(gpu, infos);
    tern__free(infos);
    if (!status && !comm) comm = comm_new(gpu, channel, err);
    if (comm) {
        comm->order = order;
        comm->channel = channel;
    }
    return comm;
}

int tern__nccl_device_part(tern__nccl_device *gpu, const tern__nccl_channel *channel, tern_error *err)
{
    return open_comm(gpu, channel->behind, channel, err) ? TERN_OK : err->code;
}

tern__nccl_comm *tern__nccl_comm_of(const tern__nccl_device *gpu, const tern__nccl_channel *channel)
{
    tern__nccl_comm *comm = gpu->comms;
    while (comm && comm->channel != channel) comm = comm->next;
    return comm ? comm : gpu->comms;
}

/* ---- life ---- */

/* Finalizing a communicator waits until the other ranks have begun to, and they may go through theirs in
 * another order. So all are begun before one is waited for. The watch must run until the device has done its
 * works. */
static void end_device(tern__nccl_device *gpu)
{
    tern__nccl *nccl = gpu->nccl;
    if (gpu->ends) return;
    gpu->ends = true;
    for (const tern__nccl_comm *comm = gpu->comms; comm; comm = comm->next) tern__nccl_comm_drain(comm);
    if (gpu == nccl->mail_device) tern__nccl_mailbox_leave(nccl->mailbox);
    tern__nccl_abort_failed(nccl);
    for (uint32_t i = 0; i < nccl->window_count; i++)
        if (nccl->windows[i].gpu == gpu) tern__nccl_detach(&nccl->windows[i]);
    for (tern__nccl_comm *comm = gpu->comms; comm; comm = comm->next) tern__nccl_comm_finalize(comm);
}

/* Takes the device off the list, so that the watch no longer sees it, and waits until no abort is in
 * progress. */
static void comm_forget(tern__nccl_device *gpu)
{
    tern__nccl *nccl = gpu->nccl;
    pthread_mutex_lock(&nccl->lock);
    tern__nccl_device **at = gpu == nccl->mail_device ? &nccl->mail_device : &nccl->devices;
    while (*at != gpu) at = &(*at)->next;
    *at = gpu->next;
    while (nccl->aborts) pthread_cond_wait(&nccl->changed, &nccl->lock);
    pthread_mutex_unlock(&nccl->lock);
    for (uint32_t i = 0; i < nccl->window_count; i++)
        if (nccl->windows[i].gpu == gpu) nccl->windows[i] = (tern__nccl_window){0};
}

/* ---- destroying what is finalized ---- */

/* Destroying a communicator waits until all ranks of this host have finalized theirs. Ranks may close their
 * groups in different order, so closing a group waits for a moment only; closing the device waits to the end.
 */
static void *reap_handles(void *arg)
{
    const tern__nccl_device *gpu = arg;
    for (int i = 0; i < gpu->ended_count; i++) gpu->plugin->destroy(gpu->ended[i]);
    return NULL;
}

static bool is_reaped(tern__nccl_device *gpu, int seconds)
{
    struct timespec until;
    if (!gpu->ended_count) return true;
    clock_gettime(CLOCK_MONOTONIC, &until); /* the time of day may be set meanwhile */
    until.tv_sec += seconds;
    if (seconds ? pthread_clockjoin_np(gpu->reaper, NULL, CLOCK_MONOTONIC, &until)
                : pthread_join(gpu->reaper, NULL))
        return false;
    gpu->ended_count = 0;
    return true;
}

static void free_device(tern__nccl_device *gpu)
{
    tern__device_unlisten(gpu->device, &gpu->listener);
    tern__free(gpu->ended);
    tern__free(gpu);
}

/* Without memory or a thread the finalized communicators are left to the end of the process. */
static void begin_reaping(tern__nccl_device *gpu)
{
    int count = 0;
    for (const tern__nccl_comm *comm = gpu->comms; comm; comm = comm->next) count++;
    gpu->plugin = gpu->nccl->plugin;
    gpu->ended = tern__alloc((size_t)count * sizeof(*gpu->ended), "tern_group_close", NULL);
    for (tern__nccl_comm *comm; (comm = gpu->comms);) {
        gpu->comms = comm->next;
        void *handle = tern__nccl_comm_free(comm);
        if (handle && gpu->ended) gpu->ended[gpu->ended_count++] = handle;
    }
    gpu->nccl = NULL;
    if (gpu->ended_count && tern__thread_new(&gpu->reaper, NULL, reap_handles, gpu)) gpu->ended_count = 0;
}

static void close_device(tern__nccl_device *gpu)
{
    for (tern__nccl_comm *comm = gpu->comms; comm; comm = comm->next)
        if (comm->is_final) tern__nccl_comm_await(comm, "to end", NULL);
    tern__nccl_abort_failed(gpu->nccl);
    comm_forget(gpu);
    begin_reaping(gpu);
}

/* The device is being closed: closes its entries in all groups. */
static void on_close(tern__close_listener *listener)
{
    tern__nccl_device *gpu = (tern__nccl_device *)listener;
    if (gpu->nccl) end_device(gpu);
    for (tern__close_listener *other = gpu->device->listeners; other; other = other->next)
        if (other->closing == on_close && ((tern__nccl_device *)other)->nccl)
            end_device((tern__nccl_device *)other);
    if (gpu->nccl) close_device(gpu);
    is_reaped(gpu, 0);
    free_device(gpu);
}

static tern__nccl_device *device_make(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    tern__nccl_device *gpu = tern__alloc(sizeof(*gpu), "tern_ddp_new", err);
    if (!gpu) return NULL;
    *gpu = (tern__nccl_device){
        .listener.closing = on_close, .nccl = nccl, .device = device, .memory = device->memory};
    tern__device_listen(device, &gpu->listener);
    return gpu;
}

tern__nccl_device *tern__nccl_mail_device_of(tern__nccl *nccl, tern_device *device)
{
    if (nccl->mail_device) return nccl->mail_device->device == device ? nccl->mail_device : NULL;
    tern__nccl_device *gpu = tern__nccl_watch(nccl, NULL) ? NULL : device_make(nccl, device, NULL);
    pthread_mutex_lock(&nccl->lock);
    nccl->mail_device = gpu;
    pthread_mutex_unlock(&nccl->lock);
    return gpu;
}

static tern__nccl_device *device_new(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    tern_error why = {0};
    tern__nccl_device *gpu = device_make(nccl, device, err);
    if (!gpu) return NULL;
    pthread_mutex_lock(&nccl->lock);
    gpu->next = nccl->devices;
    nccl->devices = gpu;
    pthread_mutex_unlock(&nccl->lock);
    if (!tern__nccl_watch(nccl, &why) && open_comm(gpu, nccl->order, NULL, &why)) return gpu;
    end_device(gpu);
    close_device(gpu);
    is_reaped(gpu, 0);
    free_device(gpu);
    if (err) *err = why;
    return NULL;
}

tern__nccl_device *tern__nccl_device_of(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    for (tern__nccl_device *gpu = nccl->devices; gpu; gpu = gpu->next)
        if (gpu->device == device) return gpu;
    return device_new(nccl, device, err);
}

void tern__nccl_devices_close(tern__nccl *nccl)
{
    const int moment_s = 5;
    for (tern__nccl_device *gpu = tern__nccl_device_first(nccl); gpu; gpu = tern__nccl_device_next(nccl, gpu))
        end_device(gpu);
    for (tern__nccl_device *gpu; (gpu = tern__nccl_device_first(nccl));) {
        close_device(gpu);
        if (is_reaped(gpu, moment_s)) free_device(gpu);
    }
}
