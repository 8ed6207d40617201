/* self.c - the back end of a group of one. Every work is done when it is posted, because the only rank's data
 * are already the result, unless they are weighted. Data in a device's memory stay there: the work is queued
 * on the device's stream. */
#include "comm/meet/shm.h"
#include "comm/move/backend.h"
#include "comm/move/reduce.h"
#include "comm/sys.h"
#include "device/device.h"

#include <string.h>
#include <sys/mman.h>

typedef struct window {
    void *base;
    size_t bytes;
    bool is_own;
    int sparse_fd; /* -1: not sparse */
} window;

typedef struct self {
    window *windows;
    uint32_t count;
    size_t room;
} self;

/* The tally of one work. */
typedef struct word {
    tern__tally tally;
    bool shadow;
    double weight;
} word;

typedef struct channel {
    self *of;
    uint64_t posted, slots;
    word *words; /* [slots] */
} channel;

static void *self_open(tern_group *group, tern_error *err)
{
    (void)group;
    return tern__alloc(sizeof(self), "tern_group_open", err);
}

static void window_release(window *w)
{
    if (w->is_own) munmap(w->base, w->bytes);
    tern__close(&w->sparse_fd);
    *w = (window){.sparse_fd = -1};
}

static void self_window_close(void *state, uint32_t number)
{
    window_release(&((self *)state)->windows[number]);
}

static void self_close(void *state)
{
    self *of = state;
    for (uint32_t i = 0; i < of->count; i++) self_window_close(of, i);
    tern__free(of->windows);
    tern__free(of);
}

/* Returns the window over all memory of a device, or NULL. */
static window *find_device_window(const self *of, const void *base, size_t bytes)
{
    const tern_device *device = base ? tern__memory_device(base) : NULL;
    if (!device || base != device->memory.base || bytes != device->memory.bytes) return NULL;
    for (uint32_t i = 0; i < of->count; i++)
        if (of->windows[i].base == base && of->windows[i].bytes == bytes) return &of->windows[i];
    return NULL;
}

static int self_window_add(self *of, window w, uint32_t *number, tern_error *err)
{
    int status = tern__array_reserve(&of->windows, &of->room, of->count + 1, sizeof(*of->windows),
                                     "tern_group_mem_alloc", err);
    if (status) return status;
    *number = of->count++;
    of->windows[*number] = w;
    return TERN_OK;
}

static int self_window_open(void *state, tern__window_opts *opts, uint32_t *number, tern_error *err)
{
    self *of = state;
    const window *same = find_device_window(of, opts->base, opts->bytes);
    int status = TERN_OK;
    if (same) {
        *number = (uint32_t)(same - of->windows);
        return TERN_OK;
    }
    if (opts->is_sparse && !opts->bytes) opts->bytes = tern__segment_sparse_bytes(1);
    window w = {.base = opts->base, .bytes = opts->bytes, .is_own = !opts->base, .sparse_fd = -1};
    if (!w.base) status = tern__segment_create_alone(&w.base, w.bytes, opts->is_sparse, &w.sparse_fd, err);
    if (status) return status;
    status = self_window_add(of, w, number, err);
    if (!status) return TERN_OK;
    window_release(&w);
    return status;
}

static int self_window_commit(void *state, uint32_t number, size_t offset, size_t bytes, bool has_pages,
                              tern_error *err)
{
    const window *w = &((self *)state)->windows[number];
    return tern__segment_commit(w->sparse_fd, w->base, offset, bytes, has_pages, err);
}

static char *self_window_at(void *state, uint32_t number, int rank)
{
    (void)rank;
    return ((self *)state)->windows[number].base;
}

static void self_channel_close(void *of)
{
    channel *c = of;
    tern__free(c->words);
    tern__free(c);
}

static void *self_channel_open(void *state, const tern__channel_opts *opts, tern_error *err)
{
    channel *c = tern__alloc(sizeof(*c), "tern_group_open", err);
    if (!c) return NULL;
    *c = (channel){.of = state, .slots = (uint64_t)TERN__MAX(opts->slots, 1)};
    c->words = tern__alloc(c->slots * sizeof(*c->words), "tern_group_open", err);
    if (c->words) return c;
    self_channel_close(c);
    return NULL;
}

/* *to = x * weight / share. */
static int weigh_extent(const tern__post *post, const char *from, char *to, uint64_t count, double share,
                        tern_error *err)
{
    tern_device *device = tern__memory_device(from);
    if (device)
        return tern__reduce_scale(device, post->dtype, from, to, count, post->terms.weight / share, err);
    tern__reduce_weighted(post->dtype, &post->terms.weight, share, &from, 1, &to, 1, count);
    return TERN_OK;
}

/* Computes the result of one rank: the mean is x * weight / share, the premul_sum x * weight. Copies it to
 * `out` if that is set, except in a broadcast, whose root is this rank. */
static int self_finish(const self *of, const tern__post *post, tern_error *err)
{
    bool is_premul = post->op == TERN_PREMUL_SUM;
    double share = is_premul ? 1 : post->terms.share;
    bool weighs = post->terms.weighted && (post->terms.weight != 1 || share != 1);
    size_t size = tern_dtype_bytes(post->dtype);
    char *out = post->out;
    bool is_moot = !is_premul && (share == 0 || post->terms.weight == 0);
    int status = TERN_OK;
    if (post->terms.idle) return TERN_OK;
    if (weighs ? is_moot : !out || post->kind == TERN__BROADCAST) return TERN_OK;
    for (int i = 0; i < post->extent_count && !status; i++) {
        const tern__extent *e = &post->extents[i];
        char *at = (char *)of->windows[e->window].base + e->offset, *to = out ? out : at;
        status = weighs ? weigh_extent(post, at, to, e->count, share, err)
                        : tern__memory_copy(to, at, e->count * size, err);
        if (out) out += e->count * size;
    }
    return status;
}

static int self_post(void *of, const tern__post *post, uint64_t *seq, tern_error *err)
{
    channel *c = of;
    int status = tern__post_check(post, err);
    if (status) return status;
    *seq = ++c->posted;
    word *w = &c->words[*seq % c->slots];
    w->shadow = post->terms.shadow;
    w->weight = post->terms.weight;
    w->tally = (tern__tally){.shadow = &w->shadow,
                             .shadows = post->terms.shadow,
                             .idle = post->terms.idle && !post->terms.shadow,
                             .shares = post->terms.weighted ? post->terms.share : 1,
                             .weight = post->terms.weighted ? &w->weight : NULL};
    return post->only_meets ? TERN_OK : self_finish(c->of, post, err);
}

static void self_note(void *of, const tern__label *label)
{
    (void)of;
    (void)label;
}

static const tern__tally *self_tally(void *of, uint64_t seq)
{
    const channel *c = of;
    return &c->words[seq % c->slots].tally;
}

static int self_wait(void *of, uint64_t seq, tern_error *err)
{
    uint64_t posted = ((channel *)of)->posted;
    if (seq <= posted) return TERN_OK;
    return tern__error_set(err, "tern_work_wait", TERN_E_STATE,
                           "work %llu was never posted, the last one is %llu", (unsigned long long)seq,
                           (unsigned long long)posted);
}

const tern__comm_backend tern__comm_self = {
    .name = "self",
    .reaches_devices = true,
    .open = self_open,
    .close = self_close,
    .window_open = self_window_open,
    .window_at = self_window_at,
    .window_close = self_window_close,
    .window_commit = self_window_commit,
    .channel_open = self_channel_open,
    .channel_close = self_channel_close,
    .post = self_post,
    .test = self_wait,
    .wait = self_wait,
    .tally = self_tally,
    .note = self_note,
};
