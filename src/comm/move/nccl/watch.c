/* watch.c - a thread that ends what hangs in NCCL. NCCL waits forever, and so does a host that waits for a
 * device on which NCCL waits. Every few milliseconds the thread checks whether a peer was lost, the group has
 * failed, a communicator reports an error, or a work takes longer on a device than the group's time-out. Then
 * it aborts all communicators: works that wait in them end, and the next call of the group reports the error
 * that all ranks agree on. */
#include "comm/move/nccl/nccl.h"

#include "base/thread.h"

#include <stdio.h>
#include <time.h>

enum { look_ms = 20 };

/* Tells all ranks that this one has failed. The group's own thread reads the error from the control plane. */
static void watch_fail(const tern__nccl *nccl, int code, const char *text)
{
    if (nccl->group->control) tern__control_abort(nccl->group->control, code, text);
}

/* Checks the first work that the device has not done. Time counts from when all ranks had posted it: a rank
 * that is late to post is named by those who wait for the meeting. */
static int check_work(tern__nccl_comm *comm, char *text, size_t size)
{
    tern_device *device = comm->gpu->device;
    const tern_group *group = comm->gpu->nccl->group;
    while (comm->passed < comm->launched) {
        int place = (int)(comm->passed % TERN__NCCL_EVENTS);
        if (device->backend->event_query(device, comm->events[place], NULL)) break;
        comm->passed++;
    }
    if (comm->passed == comm->launched) return TERN_OK;
    int64_t began = comm->began[comm->passed % TERN__NCCL_EVENTS], took = tern__now_ns() - began;
    if (!began || (double)took * 1e-9 < group->opts.timeout_s) return TERN_OK;
    snprintf(text, size, "rank %d waited %g s for %s to finish NCCL's work %llu, which all ranks have posted",
             tern_group_world_rank(group, group->boot.rank), group->opts.timeout_s, device->name,
             (unsigned long long)comm->passed + 1);
    return TERN_E_TIMEOUT;
}

/* Whether the communicator has failed and must be aborted. */
static bool is_lost(tern__nccl_comm *comm)
{
    const tern__nccl *nccl = comm->gpu->nccl;
    char text[TERN_ERROR_TEXT];
    tern_error why = {0};
    if (!comm->handle) return false;
    int status = nccl->plugin->test(comm->handle, &why);
    if (status == TERN_PENDING) return false;
    if (status)
        watch_fail(nccl, status, why.text);
    else if ((status = check_work(comm, text, sizeof(text))))
        watch_fail(nccl, status, text);
    return status != TERN_OK;
}

static void watch_look(tern__nccl *nccl)
{
    const tern__control *control = nccl->group->control;
    bool lost = control && !tern__control_is_healthy(control);
    for (tern__nccl_device *gpu = tern__nccl_device_first(nccl); gpu; gpu = tern__nccl_device_next(nccl, gpu))
        for (tern__nccl_comm *comm = gpu->comms; comm && !lost; comm = comm->next) lost = is_lost(comm);
    if (lost) tern__nccl_abort(nccl);
}

static void *watch_run(void *arg)
{
    tern__nccl *nccl = arg;
    pthread_mutex_lock(&nccl->lock);
    while (!nccl->stops) {
        struct timespec until;
        watch_look(nccl);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += look_ms * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&nccl->changed, &nccl->lock, &until);
    }
    pthread_mutex_unlock(&nccl->lock);
    return NULL;
}

int tern__nccl_watch(tern__nccl *nccl, tern_error *err)
{
    if (nccl->is_watched) return TERN_OK;
    int code = tern__thread_new(&nccl->watch, NULL, watch_run, nccl);
    if (code) return tern__error_set(err, "tern_ddp_new", TERN_E_SYSTEM, "pthread_create: error %d", code);
    nccl->is_watched = true;
    return TERN_OK;
}

void tern__nccl_unwatch(tern__nccl *nccl)
{
    if (!nccl->is_watched) return;
    pthread_mutex_lock(&nccl->lock);
    nccl->stops = true;
    pthread_cond_broadcast(&nccl->changed);
    pthread_mutex_unlock(&nccl->lock);
    pthread_join(nccl->watch, NULL);
    nccl->is_watched = false;
}
