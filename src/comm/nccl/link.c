/* link.c - a device's communicator: who is in it, how it begins, and how it ends. */
#include "comm/nccl/nccl.h"

#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* What a rank tells the others of its GPU. */
typedef struct card {
    unsigned char gpu[TERN__NCCL_GPU];
    char name[TERN__DEVICE_NAME];
    uint64_t spare; /* its first line that nobody has; 0: none */
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
                                   "give them other devices, or choose another back end "
                                   "(TERN_BACKEND=gloo, or tern_group_opts.backend)",
                                   one, other, cards[a].name, cards[b].name);
        }
    }
    return TERN_OK;
}

/* The first line is nobody's, but never spare. */
static tern__nccl_line *find_spare(const tern__nccl_link *link)
{
    tern__nccl_line *line = link->lines ? link->lines->next : NULL;
    while (line && line->channel) line = line->next;
    return line;
}

static int introduce(const tern__nccl_link *link, card *cards, tern_error *err)
{
    tern__nccl *nccl = link->nccl;
    const tern_device *device = link->device;
    const tern__nccl_line *spare = find_spare(link);
    card *own = &cards[nccl->group->boot.rank];
    own->spare = spare ? spare->number : 0;
    snprintf(own->name, sizeof(own->name), "%s", device->name);
    int status = nccl->plugin->gpu(device->index, own->gpu, err);
    if (!status && nccl->group->boot.world > 1) status = tern__nccl_tell(nccl, cards, sizeof(*cards), err);
    return status ? status : check_gpus(nccl, cards, err);
}

/* ---- lines ---- */

/* What all ranks have to spare; NULL: there is none that all have. */
static tern__nccl_line *agree(const tern__nccl_link *link, const card *cards)
{
    for (int rank = 1; rank < link->nccl->group->boot.world; rank++)
        if (cards[rank].spare != cards[0].spare) return NULL;
    return find_spare(link);
}

/* How rank 0 is found by the others, who all come: NCCL listens until they have. */
static int tell_id(tern__nccl *nccl, char ids[], tern_error *err)
{
    int status = nccl->group->boot.rank ? TERN_OK : nccl->plugin->id(ids, err);
    if (status || nccl->group->boot.world == 1) return status;
    return tern__nccl_tell(nccl, ids, TERN__NCCL_ID, err);
}

/* Whose communicator all ranks open together. */
static tern__nccl_line *line_new(tern__nccl_link *link, const tern__nccl_channel *channel, tern_error *err)
{
    char *ids = tern__alloc((size_t)link->nccl->group->boot.world * TERN__NCCL_ID, "tern_ddp_new", err);
    if (!ids) return NULL;
    tern__nccl_line *line = tell_id(link->nccl, ids, err) ? NULL : tern__nccl_line_new(link, err);
    if (line) line->channel = channel;
    int status = line ? tern__nccl_line_open(line, ids, err) : TERN_OK;
    tern__free(ids);
    return status ? NULL : line;
}

/* A communicator is not given back before the link is, as all ranks have to do that together. */
static tern__nccl_line *open_line(tern__nccl_link *link, void *order, const tern__nccl_channel *channel,
                                  tern_error *err)
{
    size_t world = (size_t)link->nccl->group->boot.world;
    card *cards = tern__alloc(world * sizeof(*cards), "tern_ddp_new", err);
    if (!cards) return NULL;
    int status = introduce(link, cards, err);
    tern__nccl_line *line = status ? NULL : agree(link, cards);
    tern__free(cards);
    if (!status && !line) line = line_new(link, channel, err);
    if (line) {
        line->order = order;
        line->channel = channel;
    }
    return line;
}

int tern__nccl_link_part(tern__nccl_link *link, const tern__nccl_channel *channel, tern_error *err)
{
    return open_line(link, channel->behind, channel, err) ? TERN_OK : err->code;
}

tern__nccl_line *tern__nccl_line_of(const tern__nccl_link *link, const tern__nccl_channel *channel)
{
    tern__nccl_line *line = link->lines;
    while (line && line->channel != channel) line = line->next;
    return line ? line : link->lines;
}

/* ---- life ---- */

int tern__nccl_fail_ended(tern_error *err)
{
    return tern__error_set(err, "tern_nccl", TERN_E_STATE, "the device was closed before this was done");
}

/* A communicator's end waits for the other ranks' to begin, and they may end theirs in another order: so the
 * ends of all begin before one is waited for. The watch is needed until the device is through. */
static void end_link(tern__nccl_link *link)
{
    tern__nccl *nccl = link->nccl;
    if (link->ends) return;
    link->ends = true;
    for (const tern__nccl_line *line = link->lines; line; line = line->next) tern__nccl_line_drain(line);
    if (link == nccl->mail) tern__nccl_mailbox_leave(nccl->mailbox);
    tern__nccl_abort_failed(nccl);
    for (uint32_t i = 0; i < nccl->window_count; i++)
        if (nccl->windows[i].link == link) tern__nccl_detach(&nccl->windows[i]);
    for (tern__nccl_line *line = link->lines; line; line = line->next) tern__nccl_line_finalize(line);
}

/* Off the list, so that the watch does not see it any more, and is not giving it up. */
static void forget(tern__nccl_link *link)
{
    tern__nccl *nccl = link->nccl;
    pthread_mutex_lock(&nccl->lock);
    tern__nccl_link **at = link == nccl->mail ? &nccl->mail : &nccl->links;
    while (*at != link) at = &(*at)->next;
    *at = link->next;
    while (nccl->aborts) pthread_cond_wait(&nccl->changed, &nccl->lock);
    pthread_mutex_unlock(&nccl->lock);
    for (uint32_t i = 0; i < nccl->window_count; i++)
        if (nccl->windows[i].link == link) nccl->windows[i] = (tern__nccl_window){0};
}

/* ---- the rest of the end ---- */

/* Of communicators that are over, NCCL waits for the ranks of this machine to have begun their end. Ranks may
 * close their groups in different order, so a group does so for a moment only; the device does to the last.
 */
static void *reap(void *arg)
{
    const tern__nccl_link *link = arg;
    for (int i = 0; i < link->ended_count; i++) link->plugin->destroy(link->ended[i]);
    return NULL;
}

static bool is_reaped(tern__nccl_link *link, int seconds)
{
    struct timespec until;
    if (!link->ended_count) return true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    if (seconds ? pthread_timedjoin_np(link->reaper, NULL, &until) : pthread_join(link->reaper, NULL))
        return false;
    link->ended_count = 0;
    return true;
}

static void free_link(tern__nccl_link *link)
{
    tern__device_part(link->device, &link->guest);
    tern__free(link->ended);
    tern__free(link);
}

/* Without memory or a thread for it what is over is left to the process's end. */
static void begin_reaping(tern__nccl_link *link)
{
    int count = 0;
    for (const tern__nccl_line *line = link->lines; line; line = line->next) count++;
    link->plugin = link->nccl->plugin;
    link->ended = tern__alloc((size_t)count * sizeof(*link->ended), "tern_group_close", NULL);
    for (tern__nccl_line *line; (line = link->lines);) {
        link->lines = line->next;
        void *comm = tern__nccl_line_free(line);
        if (comm && link->ended) link->ended[link->ended_count++] = comm;
    }
    link->nccl = NULL;
    if (link->ended_count && tern__thread_new(&link->reaper, NULL, reap, link)) link->ended_count = 0;
}

static void close_link(tern__nccl_link *link)
{
    for (tern__nccl_line *line = link->lines; line; line = line->next)
        if (line->is_final) tern__nccl_line_await(line, "to end", NULL);
    tern__nccl_abort_failed(link->nccl);
    forget(link);
    begin_reaping(link);
}

/* A device that is closed takes its links along, those of all groups. */
static void leave(tern__guest *guest)
{
    tern__nccl_link *link = (tern__nccl_link *)guest;
    if (link->nccl) end_link(link);
    for (tern__guest *other = link->device->guests; other; other = other->next)
        if (other->leave == leave && ((tern__nccl_link *)other)->nccl) end_link((tern__nccl_link *)other);
    if (link->nccl) close_link(link);
    is_reaped(link, 0);
    free_link(link);
}

static tern__nccl_link *make(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    tern__nccl_link *link = tern__alloc(sizeof(*link), "tern_ddp_new", err);
    if (!link) return NULL;
    *link = (tern__nccl_link){.guest.leave = leave, .nccl = nccl, .device = device, .memory = device->memory};
    tern__device_join(device, &link->guest);
    return link;
}

tern__nccl_link *tern__nccl_mail_of(tern__nccl *nccl, tern_device *device)
{
    if (nccl->mail) return nccl->mail->device == device ? nccl->mail : NULL;
    tern__nccl_link *link = tern__nccl_watch(nccl, NULL) ? NULL : make(nccl, device, NULL);
    pthread_mutex_lock(&nccl->lock);
    nccl->mail = link;
    pthread_mutex_unlock(&nccl->lock);
    return link;
}

static tern__nccl_link *link_new(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    tern_error why = {0};
    tern__nccl_link *link = make(nccl, device, err);
    if (!link) return NULL;
    pthread_mutex_lock(&nccl->lock);
    link->next = nccl->links;
    nccl->links = link;
    pthread_mutex_unlock(&nccl->lock);
    if (!tern__nccl_watch(nccl, &why) && open_line(link, nccl->order, NULL, &why)) return link;
    end_link(link);
    close_link(link);
    is_reaped(link, 0);
    free_link(link);
    if (err) *err = why;
    return NULL;
}

tern__nccl_link *tern__nccl_link_of(tern__nccl *nccl, tern_device *device, tern_error *err)
{
    for (tern__nccl_link *link = nccl->links; link; link = link->next)
        if (link->device == device) return link;
    return link_new(nccl, device, err);
}

void tern__nccl_links_close(tern__nccl *nccl)
{
    const int moment_s = 5;
    for (tern__nccl_link *link = tern__nccl_link_first(nccl); link; link = tern__nccl_link_next(nccl, link))
        end_link(link);
    for (tern__nccl_link *link; (link = tern__nccl_link_first(nccl));) {
        close_link(link);
        if (is_reaped(link, moment_s)) free_link(link);
    }
}
