/* line.c - a communicator of NCCL's, and the stream in which its works are. */
#include "comm/nccl/nccl.h"

#include "comm/sys.h"

#include <sched.h>
#include <unistd.h>

enum { blocks_of_messages = 8 };

/* ---- what takes its time ---- */

static int progress_all(const tern__nccl *nccl, tern_error *err)
{
    const tern__comm_backend *behind = nccl->behind;
    int status = tern__group_progress(nccl->group, err);
    if (!status) status = behind->progress(nccl->order, err);
    for (const tern__nccl_channel *c = nccl->channels; c && !status; c = c->next)
        status = behind->progress(c->behind, err);
    return status;
}

/* A communicator that the watch has given up is nothing to ask; why, the group knows or is about to. */
int tern__nccl_line_test(tern__nccl_line *line, tern_error *err)
{
    tern__nccl *nccl = line->link->nccl;
    int status = TERN_PENDING;
    if (!line->is_pending) return TERN_OK;
    pthread_mutex_lock(&nccl->lock);
    if (line->comm)
        status = nccl->plugin->test(line->comm, err);
    else if (!nccl->group->control)
        status = tern__error_set(err, "tern_work_wait", TERN_E_PEER, "NCCL's communicator was given up");
    pthread_mutex_unlock(&nccl->lock);
    line->is_pending = status == TERN_PENDING;
    return status;
}

/* NCCL takes 50 us or so for a work, less than a thread takes to go to sleep and come back. */
static void pause_since(int64_t began)
{
    const int64_t awake_ns = 200000;
    if (tern__now_ns() - began < awake_ns)
        sched_yield();
    else
        usleep(20);
}

int tern__nccl_await(tern__nccl *nccl, int (*is_over)(void *of, tern_error *err), void *of, const char *what,
                     tern_error *err)
{
    const tern_group *group = nccl->group;
    int64_t deadline = tern__deadline(group->opts.timeout_s), began = tern__now_ns();
    tern_error why = {0};
    int status = is_over(of, &why);
    while (status == TERN_PENDING && !(status = progress_all(nccl, &why))) {
        status = is_over(of, &why);
        if (status == TERN_PENDING && tern__now_ns() > deadline)
            return tern__error_set(err, "tern_work_wait", TERN_E_TIMEOUT, "rank %d waited %g s for NCCL %s",
                                   group->boot.rank, group->opts.timeout_s, what);
        if (status == TERN_PENDING) pause_since(began);
    }
    return status ? tern__error_set(err, why.func, status, "%s", why.text) : TERN_OK;
}

/* ---- life ---- */

static int open_marks(tern__nccl_line *line, tern_error *err)
{
    tern_device *device = line->link->device;
    line->ready = device->backend->event_new(device, err);
    for (int i = 0; i < TERN__NCCL_EVENTS; i++)
        if (!(line->events[i] = device->backend->event_new(device, err))) return err->code;
    return line->ready ? TERN_OK : err->code;
}

/* NCCL puts a work into its stream at a time of its own: in a stream that two communicators shared their
 * works might come in another order on each rank, and the devices would wait for each other. */
tern__nccl_line *tern__nccl_line_new(tern__nccl_link *link, tern_error *err)
{
    tern__nccl *nccl = link->nccl;
    tern__nccl_line *line = tern__alloc(sizeof(*line), "tern_ddp_new", err), **at = &link->lines;
    if (!line) return NULL;
    *line = (tern__nccl_line){.link = link, .number = 1};
    for (; *at; at = &(*at)->next) line->number++;
    if (link->device->backend->stream_new(link->device, &line->stream, err)) {
        tern__free(line);
        return NULL;
    }
    pthread_mutex_lock(&nccl->lock);
    *at = line;
    pthread_mutex_unlock(&nccl->lock);
    return line;
}

/* The kernels of messages wait in the device for their peers', so those to and from many ranks have to fit
 * into it side by side: none may take many blocks. */
int tern__nccl_line_begin(tern__nccl_line *line, int rank, int world, const char id[TERN__NCCL_ID],
                          tern_error *err)
{
    const tern__nccl_link *link = line->link;
    if (open_marks(line, err)) return err->code;
    int blocks = link == link->nccl->mail ? blocks_of_messages : 0;
    void *comm = link->nccl->plugin->open(link->device->index, rank, world, blocks, id, err);
    if (!comm) return err->code;
    pthread_mutex_lock(&link->nccl->lock);
    line->comm = comm;
    line->is_pending = true;
    pthread_mutex_unlock(&link->nccl->lock);
    return TERN_OK;
}

static int is_done(void *line, tern_error *err)
{
    return tern__nccl_line_test(line, err);
}

int tern__nccl_line_await(tern__nccl_line *line, const char *what, tern_error *err)
{
    return tern__nccl_await(line->link->nccl, is_done, line, what, err);
}

int tern__nccl_line_open(tern__nccl_line *line, const char id[TERN__NCCL_ID], tern_error *err)
{
    const tern__bootstrap *boot = &line->link->nccl->group->boot;
    int status = tern__nccl_line_begin(line, boot->rank, boot->world, id, err);
    return status ? status : tern__nccl_line_await(line, "to join all ranks", err);
}

/* ---- giving up ---- */

/* All communicators, chained; nobody else knows of them any more. */
static tern__nccl_line *take_all(const tern__nccl *nccl)
{
    tern__nccl_line *taken = NULL;
    for (tern__nccl_link *link = tern__nccl_link_first(nccl); link; link = tern__nccl_link_next(nccl, link)) {
        for (tern__nccl_line *line = link->lines; line; line = line->next) {
            if (!line->comm) continue;
            line->given_up = line->comm;
            line->comm = NULL;
            line->taken = taken;
            taken = line;
        }
    }
    return taken;
}

/* As one work: who gives up a communicator may wait for its device, in which another one hangs. NCCL may wait
 * for a peer that is stopped, too, and whoever waits for a work is to hear why meanwhile: the lock is free.
 */
void tern__nccl_abort(tern__nccl *nccl)
{
    tern__nccl_line *taken = take_all(nccl);
    if (!taken) return;
    nccl->aborts++;
    pthread_mutex_unlock(&nccl->lock);
    int status = nccl->plugin->begin(NULL);
    for (const tern__nccl_line *line = taken; line; line = line->taken) nccl->plugin->abort(line->given_up);
    if (!status) nccl->plugin->end(NULL, NULL);
    pthread_mutex_lock(&nccl->lock);
    nccl->aborts--;
    pthread_cond_broadcast(&nccl->changed);
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

/* With the watch beside, unless it will not come. */
int tern__nccl_line_drain(const tern__nccl_line *line)
{
    tern_device *device = line->link->device;
    int last = (int)((line->launched + TERN__NCCL_EVENTS - 1) % TERN__NCCL_EVENTS);
    if (!line->launched) return TERN_OK;
    if (has_failed(line->link->nccl->group)) return TERN_E_PEER;
    return device->backend->event_wait(device, line->events[last], NULL);
}

static void free_lane(tern__nccl_line *line)
{
    tern_device *device = line->link->device;
    if (line->ready) device->backend->event_free(device, line->ready);
    for (int i = 0; i < TERN__NCCL_EVENTS; i++)
        if (line->events[i]) device->backend->event_free(device, line->events[i]);
    device->backend->stream_free(device, line->stream);
}

void tern__nccl_line_finalize(tern__nccl_line *line)
{
    tern__nccl *nccl = line->link->nccl;
    if (line->is_final || line->is_pending || tern__nccl_line_drain(line) || has_failed(nccl->group)) return;
    pthread_mutex_lock(&nccl->lock);
    int status = line->comm ? nccl->plugin->finalize(line->comm, NULL) : TERN_OK;
    pthread_mutex_unlock(&nccl->lock);
    line->is_pending = status == TERN_PENDING;
    line->is_final = line->is_pending || !status;
}

/* Off the link's list. */
void *tern__nccl_line_free(tern__nccl_line *line)
{
    const tern__nccl *nccl = line->link->nccl;
    bool is_over = line->is_final && !line->is_pending && !has_failed(nccl->group);
    void *comm = line->comm;
    if (comm && !is_over) nccl->plugin->abort(comm);
    free_lane(line);
    tern__free(line);
    return is_over ? comm : NULL;
}
