/* watch.c - NCCL waits for ever, and who waits for a device that waits in NCCL does, too. So a thread looks
 * every few milliseconds whether a peer was lost, the group has failed, a communicator reports an error or a
 * work takes longer in a device than the group's limit. Then it gives the communicators up: what waits in
 * them goes on, and the next call of the group says why, in the words that all ranks have. */
#include "comm/nccl/nccl.h"

#include "base/thread.h"

#include <stdio.h>
#include <time.h>

enum { look_ms = 20 };

/* For all ranks, as a failure of this one. The group's own thread reads it from the control plane. */
static void fail(const tern__nccl *nccl, int code, const char *text)
{
    if (nccl->group->control) tern__control_abort(nccl->group->control, code, text);
}

/* The first work that the device has not done. Who is late to post one is named by whoever waits for that. */
static int check_work(tern__nccl_line *line, char *text, size_t size)
{
    tern_device *device = line->link->device;
    const tern_group *group = line->link->nccl->group;
    while (line->passed < line->launched) {
        int place = (int)(line->passed % TERN__NCCL_EVENTS);
        if (device->backend->event_query(device, line->events[place], NULL)) break;
        line->passed++;
    }
    if (line->passed == line->launched) return TERN_OK;
    int64_t began = line->began[line->passed % TERN__NCCL_EVENTS], took = tern__now_ns() - began;
    if (!began || (double)took * 1e-9 < group->opts.timeout_s) return TERN_OK;
    snprintf(text, size,
             "rank %d waited %g s for %s to be done with work %llu of NCCL, which all have posted",
             tern_group_world_rank(group, group->boot.rank), group->opts.timeout_s, device->name,
             (unsigned long long)line->passed + 1);
    return TERN_E_TIMEOUT;
}

/* Is it to be given up? */
static bool is_lost(tern__nccl_line *line)
{
    const tern__nccl *nccl = line->link->nccl;
    char text[TERN_ERROR_TEXT];
    tern_error why = {0};
    if (!line->comm) return false;
    int status = nccl->plugin->test(line->comm, &why);
    if (status == TERN_PENDING) return false;
    if (status)
        fail(nccl, status, why.text);
    else if ((status = check_work(line, text, sizeof(text))))
        fail(nccl, status, text);
    return status != TERN_OK;
}

static void look(tern__nccl *nccl)
{
    const tern__control *control = nccl->group->control;
    bool lost = control && !tern__control_is_healthy(control);
    for (tern__nccl_link *link = tern__nccl_link_first(nccl); link; link = tern__nccl_link_next(nccl, link))
        for (tern__nccl_line *line = link->lines; line && !lost; line = line->next) lost = is_lost(line);
    if (lost) tern__nccl_abort(nccl);
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
    int code = tern__thread_new(&nccl->watch, NULL, watch, nccl);
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
