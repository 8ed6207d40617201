/* watch.c - NCCL waits for ever, and who waits for a device that waits in NCCL does, too. So a thread looks
 * every few milliseconds whether a peer was lost, the group has failed, a communicator reports an error or a
 * work takes longer in a device than the group's limit. Then it gives the communicators up: what waits in
 * them goes on, and the next call of the group says why, in the words that all ranks have. */
#include "comm/nccl/nccl.h"

#include <stdio.h>
#include <time.h>

enum { look_ms = 20 };

static void abort_all(tern__nccl *nccl)
{
    for (tern__nccl_link *link = nccl->links; link; link = link->next) tern__nccl_link_abort(link);
}

/* For all ranks, as a failure of this one. The group's own thread reads it from the control plane. */
static void fail(const tern__nccl *nccl, int code, const char *text)
{
    if (nccl->group->control) tern__control_abort(nccl->group->control, code, text);
}

/* The first work that the device has not done. Who is late to post one is named by whoever waits for that. */
static int check_work(tern__nccl_link *link, char *text, size_t size)
{
    const tern__device_backend *backend = link->device->backend;
    const tern_group *group = link->nccl->group;
    while (link->passed < link->launched) {
        int place = (int)(link->passed % TERN__NCCL_MARKS);
        if (backend->mark_test(link->device, link->marks[place], NULL)) break;
        link->passed++;
    }
    if (link->passed == link->launched) return TERN_OK;
    int64_t began = link->began[link->passed % TERN__NCCL_MARKS], took = tern__now_ns() - began;
    if (!began || (double)took * 1e-9 < group->opts.timeout_s) return TERN_OK;
    snprintf(text, size,
             "rank %d waited %g s for %s to be done with work %llu of NCCL, which all have posted",
             tern_group_world_rank(group, group->boot.rank), group->opts.timeout_s, link->device->name,
             (unsigned long long)link->passed + 1);
    return TERN_E_TIMEOUT;
}

static void look_at(tern__nccl_link *link)
{
    char text[TERN_ERROR_TEXT];
    tern_error why = {0};
    if (!link->comm) return;
    int status = link->nccl->plugin->test(link->comm, &why);
    if (status && status != TERN_PENDING) {
        fail(link->nccl, status, why.text);
        tern__nccl_link_abort(link);
    } else if (!status && (status = check_work(link, text, sizeof(text)))) {
        fail(link->nccl, status, text);
        tern__nccl_link_abort(link);
    }
}

static void look(tern__nccl *nccl)
{
    const tern__control *control = nccl->group->control;
    if (control && !tern__control_is_healthy(control)) abort_all(nccl);
    for (tern__nccl_link *link = nccl->links; link; link = link->next) look_at(link);
}

static void *watch(void *arg)
{
    tern__nccl *nccl = arg;
    pthread_mutex_lock(&nccl->lock);
    while (!nccl->stops) {
        struct timespec until;
        look(nccl);
        clock_gettime(CLOCK_REALTIME, &until);
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
    int code = pthread_create(&nccl->watch, NULL, watch, nccl);
    if (code) return tern__error_set(err, "tern_ddp_new", TERN_E_SYSTEM, "pthread_create: error %d", code);
    nccl->is_watched = true;
    return TERN_OK;
}

void tern__nccl_unwatch(tern__nccl *nccl)
{
    if (!nccl->is_watched) return;
    pthread_mutex_lock(&nccl->lock);
    nccl->stops = true;
    pthread_cond_signal(&nccl->changed);
    pthread_mutex_unlock(&nccl->lock);
    pthread_join(nccl->watch, NULL);
    nccl->is_watched = false;
}
