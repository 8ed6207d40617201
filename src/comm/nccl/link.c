/* link.c - a device's communicator: who is in it, how it begins, and how it ends. */
#include "comm/nccl/nccl.h"

#include "comm/hosts/hosts.h"
#include "comm/sys.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a rank tells the others of its GPU; rank 0 also how they find each other. */
typedef struct card {
    char id[TERN__NCCL_ID];
    unsigned char gpu[TERN__NCCL_GPU];
    char name[TERN__DEVICE_NAME];
} card;

/* ---- meeting ---- */

int tern__nccl_tell(tern__nccl *nccl, void *all, size_t each, tern_error *err)
{
    size_t bytes = (size_t)nccl->group->boot.world * each, own = (size_t)nccl->group->boot.rank * each;
    uint64_t seq;
    uint32_t window;
    int status = nccl->behind->window_open(nccl->state, NULL, bytes, &window, err);
    if (status) return status;
    char *seen = nccl->behind->window_base(nccl->state, window);
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

/* NCCL would say so, too, but not in words that help. All ranks come to the same verdict. */
static int check_gpus(const tern__nccl *nccl, const card *cards, tern_error *err)
{
    char one[128], other[128];
    for (int b = 1; b < nccl->group->boot.world; b++) {
        for (int a = 0; a < b; a++) {
            if (memcmp(cards[a].gpu, cards[b].gpu, TERN__NCCL_GPU)) continue;
            tern__group_describe(nccl->group, a, one, sizeof(one));
            tern__group_describe(nccl->group, b, other, sizeof(other));
            return tern__error_set(err, "tern_ddp_new", TERN_E_UNSUPPORTED,
                                   "%s and %s use one GPU (%s, %s), and NCCL joins ranks that have one each: "
                                   "give them other devices, or choose --backend gloo",
                                   one, other, cards[a].name, cards[b].name);
        }
    }
    return TERN_OK;
}

static int introduce(tern__nccl *nccl, const tern_device *device, card *cards, tern_error *err)
{
    card *own = &cards[nccl->group->boot.rank];
    snprintf(own->name, sizeof(own->name), "%s", device->name);
    int status = nccl->plugin->gpu(device->index, own->gpu, err);
    if (!status && nccl->group->boot.rank == 0) status = nccl->plugin->id(own->id, err);
    if (!status && nccl->group->boot.world > 1) status = tern__nccl_tell(nccl, cards, sizeof(*cards), err);
    return status ? status : check_gpus(nccl, cards, err);
}

/* ---- what takes its time ---- */

static int progress_all(const tern__nccl *nccl, tern_error *err)
{
    const tern__comm_backend *behind = nccl->behind;
    int status = nccl->group->root->link ? tern__link_progress(nccl->group->root->link, err) : TERN_OK;
    if (!status) status = behind->progress(nccl->order, err);
    for (const tern__nccl_channel *c = nccl->channels; c && !status; c = c->next)
        status = behind->progress(c->behind, err);
    return status;
}

static int ask(tern__nccl_link *link, tern_error *err)
{
    pthread_mutex_lock(&link->nccl->lock);
    int status = TERN_PENDING;
    if (link->comm)
        status = link->nccl->plugin->test(link->comm, err);
    else if (!link->nccl->group->control)
        status = tern__error_set(err, "tern_work_wait", TERN_E_PEER, "NCCL's communicator was given up");
    pthread_mutex_unlock(&link->nccl->lock);
    return status;
}

/* A communicator that the watch has given up is nothing to ask; why, the group knows or is about to. */
int tern__nccl_link_settle(tern__nccl_link *link, int status, const char *what, tern_error *err)
{
    const tern_group *group = link->nccl->group;
    int64_t deadline = tern__deadline(group->opts.timeout_s);
    while (status == TERN_PENDING) {
        tern_error why = {0};
        status = progress_all(link->nccl, &why);
        if (!status) status = ask(link, &why);
        if (status && status != TERN_PENDING) return tern__error_set(err, why.func, status, "%s", why.text);
        if (status == TERN_PENDING && tern__now_ns() > deadline)
            return tern__error_set(err, "tern_work_wait", TERN_E_TIMEOUT, "rank %d waited %g s for NCCL %s",
                                   group->boot.rank, group->opts.timeout_s, what);
        if (status == TERN_PENDING) usleep(20);
    }
    return status;
}

/* ---- life ---- */

/* A device that is closed takes its links along. */
static void leave(tern__guest *guest)
{
    tern__nccl_link_close((tern__nccl_link *)guest);
}

static int open_marks(tern__nccl_link *link, tern_error *err)
{
    const tern__device_backend *backend = link->device->backend;
    link->ready = backend->mark_new(link->device, err);
    for (int i = 0; i < TERN__NCCL_MARKS; i++)
        if (!(link->marks[i] = backend->mark_new(link->device, err))) return err->code;
    return link->ready ? TERN_OK : err->code;
}

static int open_comm(tern__nccl_link *link, tern_error *err)
{
    tern__nccl *nccl = link->nccl;
    const tern__bootstrap *boot = &nccl->group->boot;
    card *cards = tern__alloc((size_t)boot->world * sizeof(*cards), "tern_ddp_new", err);
    if (!cards) return TERN_E_MEMORY;
    int status = introduce(nccl, link->device, cards, err);
    if (!status) {
        void *comm = nccl->plugin->open(link->device->index, boot->rank, boot->world, cards[0].id, err);
        status = comm ? TERN_PENDING : err->code;
        pthread_mutex_lock(&nccl->lock);
        link->comm = comm;
        pthread_mutex_unlock(&nccl->lock);
    }
    tern__free(cards);
    return tern__nccl_link_settle(link, status, "to join all ranks", err);
}

static tern__nccl_link *link_new(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    tern_error why = {0};
    tern__nccl_link *link = tern__alloc(sizeof(*link), "tern_ddp_new", err);
    if (!link) return NULL;
    *link = (tern__nccl_link){.guest.leave = leave, .nccl = nccl, .device = device, .memory = device->memory};
    pthread_mutex_lock(&nccl->lock);
    link->next = nccl->links;
    nccl->links = link;
    pthread_mutex_unlock(&nccl->lock);
    tern__device_join(device, &link->guest);
    if (!tern__nccl_watch(nccl, &why) && !open_marks(link, &why) && !open_comm(link, &why)) return link;
    tern__nccl_link_close(link);
    if (err) *err = why;
    return NULL;
}

tern__nccl_link *tern__nccl_link_of(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    for (tern__nccl_link *link = nccl->links; link; link = link->next)
        if (link->device == device) return link;
    return link_new(nccl, device, err);
}

void tern__nccl_link_abort(tern__nccl_link *link)
{
    if (link->comm) link->nccl->plugin->abort(link->comm);
    link->comm = NULL;
}

/* Off the list, so that the watch does not see it any more. */
static void forget(tern__nccl_link *link)
{
    tern__nccl *nccl = link->nccl;
    pthread_mutex_lock(&nccl->lock);
    tern__nccl_link **at = &nccl->links;
    while (*at != link) at = &(*at)->next;
    *at = link->next;
    pthread_mutex_unlock(&nccl->lock);
    for (uint32_t i = 0; i < nccl->window_count; i++) {
        tern__nccl_window *window = &nccl->windows[i];
        if (window->link != link) continue;
        tern__nccl_detach(window);
        *window = (tern__nccl_window){0};
    }
    tern__device_part(link->device, &link->guest);
}

static bool has_failed(const tern_group *group)
{
    return group->root->error.code || (group->control && !tern__control_is_healthy(group->control));
}

/* With the watch beside, unless it will not come. */
int tern__nccl_link_drain(const tern__nccl_link *link)
{
    int last = (int)((link->launched + TERN__NCCL_MARKS - 1) % TERN__NCCL_MARKS);
    if (!link->launched) return TERN_OK;
    if (has_failed(link->nccl->group)) return TERN_E_PEER;
    return link->device->backend->mark_wait(link->device, link->marks[last], NULL);
}

void tern__nccl_link_close(tern__nccl_link *link)
{
    const tern__device_backend *backend = link->device->backend;
    tern__nccl *nccl = link->nccl;
    bool is_done = !tern__nccl_link_drain(link);
    forget(link);
    if (link->comm && is_done && !has_failed(nccl->group))
        nccl->plugin->close(link->comm);
    else
        tern__nccl_link_abort(link);
    if (link->ready) backend->mark_free(link->device, link->ready);
    for (int i = 0; i < TERN__NCCL_MARKS; i++)
        if (link->marks[i]) backend->mark_free(link->device, link->marks[i]);
    tern__free(link);
}
