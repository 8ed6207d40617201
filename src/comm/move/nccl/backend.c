/* backend.c - the NCCL back end's struct of functions. Host memory is passed on to the back end behind,
 * device memory is handled here. */
#include "comm/move/nccl/nccl.h"

#include "base/plugin.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- state ---- */

static const tern__nccl_plugin *find_plugin(tern_error *err)
{
    tern_error why = {0};
    const tern__nccl_plugin *plugin = tern__plugin_open("tern_nccl.so", TERN__NCCL_SYMBOL, &why);
    if (plugin && !strcmp(plugin->version, tern_version())) return plugin;
    if (plugin)
        tern__error_set(&why, NULL, TERN_E_UNSUPPORTED, "the plug-in tern_nccl.so is of tern %s, expected %s",
                        plugin->version, tern_version());
    tern__error_set(err, "tern_group_open", why.code,
                    "back end \"nccl\": %.400s; build it with -DTERN_CUDA=ON, or choose another one "
                    "(TERN_BACKEND=gloo, or tern_group_opts.backend)",
                    why.text);
    return NULL;
}

static int nccl_open_parts(tern__nccl *nccl, tern_error *err)
{
    const tern__channel_opts opts = {.slots = TERN__NCCL_SLOTS};
    size_t world = (size_t)nccl->group->boot.world;
    nccl->plugin = find_plugin(err);
    if (!nccl->plugin) return err->code;
    nccl->nothing = tern__alloc(world * sizeof(*nccl->nothing), "tern_group_open", err);
    nccl->state = nccl->nothing ? nccl->behind->open(nccl->group, err) : NULL;
    if (!nccl->state) return err->code;
    nccl->order = nccl->behind->channel_open(nccl->state, &opts, err);
    nccl->group->reaches_own = false; /* works on devices need windows */
    return nccl->order ? TERN_OK : err->code;
}

static void nccl_close(void *state)
{
    tern__nccl *nccl = state;
    tern__nccl_mailbox_close(nccl->mailbox);
    nccl->mailbox = NULL; /* closing a device looks for its messages */
    tern__nccl_devices_close(nccl);
    tern__nccl_unwatch(nccl);
    tern__progress_hook_remove(&nccl->group->hooks, &nccl->hook);
    if (nccl->order) nccl->behind->channel_close(nccl->order);
    if (nccl->state) nccl->behind->close(nccl->state);
    pthread_mutex_destroy(&nccl->lock);
    pthread_cond_destroy(&nccl->changed);
    tern__free(nccl->windows);
    tern__free(nccl->nothing);
    tern__free(nccl);
}

/* The watch sleeps by a clock that nobody sets. */
static void init_lock(tern__nccl *nccl)
{
    pthread_condattr_t clock;
    pthread_mutex_init(&nccl->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&nccl->changed, &clock);
    pthread_condattr_destroy(&clock);
}

static void *nccl_open(tern_group *group, tern_error *err)
{
    tern__nccl *nccl = tern__alloc(sizeof(*nccl), "tern_group_open", err);
    if (!nccl) return NULL;
    *nccl = (tern__nccl){.hook = {.progress = tern__nccl_progress}, .group = group, .behind = group->second};
    init_lock(nccl);
    if (nccl_open_parts(nccl, err)) {
        nccl_close(nccl);
        return NULL;
    }
    tern__progress_hook_add(&group->hooks, &nccl->hook);
    return nccl;
}

/* ---- windows ---- */

/* Reuses the numbers of closed windows: they are local to this rank. */
static int add_window(tern__nccl *nccl, tern__nccl_window window, uint32_t *number, tern_error *err)
{
    uint32_t free = 0;
    while (free < nccl->window_count && nccl->windows[free].gpu) free++;
    *number = TERN__NCCL_AWAY | free;
    if (free < nccl->window_count) {
        nccl->windows[free] = window;
        return TERN_OK;
    }
    size_t count = nccl->window_count;
    tern__nccl_window *grown = tern__realloc_array(nccl->windows, count * sizeof(*grown),
                                                   (count + 1) * sizeof(*grown), "tern_ddp_new", err);
    if (!grown) return TERN_E_MEMORY;
    nccl->windows = grown;
    grown[nccl->window_count++] = window;
    return TERN_OK;
}

/* Returns the window of that number; NULL: the number is one of the back end behind. */
static tern__nccl_window *window_at(const tern__nccl *nccl, uint32_t number)
{
    return number & TERN__NCCL_AWAY ? &nccl->windows[number & ~TERN__NCCL_AWAY] : NULL;
}

/* The one window over all memory of a device is never registered: the memory changes. */
static int nccl_window_open(void *state, tern__window_opts *opts, uint32_t *number, tern_error *err)
{
    tern__nccl *nccl = state;
    char *base = opts->base;
    tern_device *device = base ? tern__memory_device(base) : NULL;
    if (!device) return nccl->behind->window_open(nccl->state, opts, number, err);
    tern__nccl_window window = {.base = base, .bytes = opts->bytes};
    window.gpu = tern__nccl_device_of(nccl, device, err);
    if (!window.gpu) return err->code;
    for (uint32_t i = 0; base == device->memory.base && i < nccl->window_count; i++) {
        *number = TERN__NCCL_AWAY | i;
        if (nccl->windows[i].gpu == window.gpu && nccl->windows[i].base == base) return TERN_OK;
    }
    return add_window(nccl, window, number, err);
}

static char *nccl_window_at(void *state, uint32_t number, int rank)
{
    const tern__nccl *nccl = state;
    const tern__nccl_window *window = window_at(nccl, number);
    if (!window) return nccl->behind->window_at(nccl->state, number, rank);
    return rank == nccl->group->boot.rank ? window->base : NULL;
}

static void nccl_window_close(void *state, uint32_t number)
{
    tern__nccl *nccl = state;
    tern__nccl_window *window = window_at(nccl, number);
    if (!window) {
        nccl->behind->window_close(nccl->state, number);
        return;
    }
    tern__nccl_detach(window);
    *window = (tern__nccl_window){0};
}

/* A sparse window is in host memory. */
static int nccl_window_commit(void *state, uint32_t number, size_t offset, size_t bytes, bool has_pages,
                              tern_error *err)
{
    const tern__nccl *nccl = state;
    return nccl->behind->window_commit(nccl->state, number, offset, bytes, has_pages, err);
}

/* ---- channels ---- */

static tern__nccl_work *nccl_work_at(const tern__nccl_channel *c, uint64_t seq)
{
    return &c->works[seq % c->slots];
}

/* Fails the group if a work was not posted by all ranks: the devices that have it would wait forever. */
static void fail_unmet(const tern__nccl_channel *c)
{
    tern_group *group = c->nccl->group;
    char text[TERN_ERROR_TEXT];
    for (uint64_t seq = c->finished + 1; seq <= c->posted; seq++) {
        const tern__nccl_work *work = nccl_work_at(c, seq);
        bool is_on_device = work->comm || work->is_ended;
        if (!is_on_device || group->root->error.code || !group->control) continue;
        if (c->nccl->behind->test(work->order, work->seq, NULL) != TERN_PENDING) continue;
        snprintf(text, sizeof(text), "rank %d has closed its group before work %llu was done",
                 tern_group_world_rank(group, group->boot.rank), (unsigned long long)seq);
        tern__control_abort(group->control, TERN_E_PEER, text);
        return;
    }
}

/* Works in progress on devices need not be waited for: later work in their streams comes after them, and the
 * stream in whose order their memory is freed is made to wait for them. */
static void nccl_channel_close(void *of)
{
    tern__nccl_channel *c = of, **at = &c->nccl->channels;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    fail_unmet(c);
    for (tern__nccl_device *gpu = c->nccl->devices; gpu; gpu = gpu->next)
        for (tern__nccl_comm *comm = gpu->comms; comm; comm = comm->next) tern__nccl_comm_leave(comm, c);
    c->nccl->behind->channel_close(c->behind);
    tern__free(c->works);
    tern__free(c);
}

/* Gives the channel communicators of its own, and registers its windows with those that move them. */
static int prepare_channel(tern__nccl_channel *c, const tern__channel_opts *opts, tern_error *err)
{
    const tern__nccl *nccl = c->nccl;
    bool is_separate = opts->is_separate && nccl->group->boot.world > 1;
    int status = TERN_OK;
    for (tern__nccl_device *gpu = nccl->devices; gpu && is_separate && !status; gpu = gpu->next)
        status = tern__nccl_device_part(gpu, c, err);
    for (int i = 0; i < opts->window_count && !status; i++) {
        tern__nccl_window *window = window_at(nccl, opts->windows[i]);
        if (window) status = tern__nccl_attach(window, tern__nccl_comm_of(window->gpu, c), err);
    }
    return status;
}

static void *nccl_channel_open(void *state, const tern__channel_opts *opts, tern_error *err)
{
    tern__nccl *nccl = state;
    tern__nccl_channel *c = tern__alloc(sizeof(*c), "tern_group_open", err);
    if (!c) return NULL;
    *c = (tern__nccl_channel){
        .nccl = nccl, .slots = (uint64_t)TERN__MAX(opts->slots, 1), .next = nccl->channels};
    c->works = tern__alloc(c->slots * sizeof(*c->works), "tern_group_open", err);
    if (c->works)
        c->behind = nccl->behind->channel_open(nccl->state, &(tern__channel_opts){.slots = opts->slots}, err);
    if (!c->behind) {
        tern__free(c->works);
        tern__free(c);
        return NULL;
    }
    nccl->channels = c;
    if (!prepare_channel(c, opts, err)) return c;
    nccl_channel_close(c);
    return NULL;
}

/* A device finishes what it was given before it is closed. */
static int nccl_work_finish(tern__nccl_work *work, tern_error *err)
{
    if (work->comm) return tern__nccl_work_finish(work, err);
    return work->is_ended && work->is_queued ? tern__nccl_fail_ended(err) : TERN_OK;
}

/* Finishes all works up to `seq`, in order. A wait advances the queues of all groups of the family, so this
 * function may be entered again meanwhile. */
static int finish_to(tern__nccl_channel *c, uint64_t seq, bool waits, tern_error *err)
{
    const tern__comm_backend *behind = c->nccl->behind;
    while (c->finished < seq) {
        uint64_t next = c->finished + 1;
        tern__nccl_work *work = nccl_work_at(c, next);
        int status = (waits ? behind->wait : behind->test)(work->order, work->seq, err);
        if (!status && c->finished < next && work->comm) status = tern__nccl_work_settle(work, waits, err);
        if (status) return status;
        if (c->finished >= next) continue;
        c->finished = next;
        status = nccl_work_finish(work, err);
        if (status) return status;
    }
    return TERN_OK;
}

static int nccl_wait(void *of, uint64_t seq, tern_error *err)
{
    return finish_to(of, seq, true, err);
}

static int nccl_test(void *of, uint64_t seq, tern_error *err)
{
    return finish_to(of, seq, false, err);
}

/* ---- works ---- */

/* Finds the device of the post's memory; NULL: the host. E_INVALID: the extents belong to different devices.
 */
static int find_device(const tern__nccl *nccl, const tern__post *post, tern__nccl_device **gpu,
                       tern_error *err)
{
    *gpu = NULL;
    for (int i = 0; i < post->extent_count; i++) {
        const tern__nccl_window *window = window_at(nccl, post->extents[i].window);
        tern__nccl_device *of = window ? window->gpu : NULL;
        if (i && of != *gpu)
            return tern__error_set(err, "tern_backward", TERN_E_INVALID,
                                   "the buffers of one work lie in the memory of different devices");
        *gpu = of;
    }
    return TERN_OK;
}

static int nccl_post(void *of, const tern__post *post, uint64_t *seq, tern_error *err)
{
    tern__nccl_channel *c = of;
    tern__nccl *nccl = c->nccl;
    tern__nccl_device *gpu;
    int status = find_device(nccl, post, &gpu, err);
    if (!status && c->posted >= c->slots) status = nccl_wait(c, c->posted + 1 - c->slots, err);
    if (status) return status;
    tern__nccl_work *work = nccl_work_at(c, c->posted + 1);
    tern__nccl_comm *comm = gpu ? tern__nccl_comm_of(gpu, c) : NULL;
    *work = (tern__nccl_work){.order = comm ? comm->order : c->behind};
    status = comm ? tern__nccl_work_post(work, comm, post, err)
                  : nccl->behind->post(c->behind, post, &work->seq, err);
    if (!status) *seq = ++c->posted;
    return status;
}

int tern__nccl_progress(tern__progress_hook *hook, tern_error *err)
{
    const tern__nccl *nccl = (const tern__nccl *)hook;
    int status = TERN_OK;
    for (tern__nccl_device *gpu = tern__nccl_device_first(nccl); gpu; gpu = tern__nccl_device_next(nccl, gpu))
        for (tern__nccl_comm *comm = gpu->comms; comm && !status; comm = comm->next)
            status = tern__nccl_comm_advance(comm, err);
    return status ? status : tern__nccl_mailbox_advance(nccl->mailbox, err);
}

static void nccl_note(void *of, const tern__label *label)
{
    const tern__nccl_channel *c = of;
    c->nccl->behind->note(c->behind, label);
}

static const tern__tally *nccl_tally(void *of, uint64_t seq)
{
    const tern__nccl_channel *c = of;
    const tern__nccl_work *work = nccl_work_at(c, seq);
    return c->nccl->behind->tally(work->order, work->seq);
}

const tern__comm_backend tern__comm_nccl = {
    .name = "nccl",
    .reaches_devices = true,
    .open = nccl_open,
    .close = nccl_close,
    .window_open = nccl_window_open,
    .window_at = nccl_window_at,
    .window_close = nccl_window_close,
    .window_commit = nccl_window_commit,
    .channel_open = nccl_channel_open,
    .channel_close = nccl_channel_close,
    .post = nccl_post,
    .test = nccl_test,
    .wait = nccl_wait,
    .tally = nccl_tally,
    .note = nccl_note,
    .transfer_start = tern__nccl_transfer_start,
    .transfer_wait = tern__nccl_transfer_wait,
    .transfer_drop = tern__nccl_transfer_drop,
};
