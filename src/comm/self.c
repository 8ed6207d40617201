/* self.c - the back end of a group of one: every work is done when it is posted, because the only rank's data
 * is already the result. */
#include "comm/group.h"

#include <sys/mman.h>

typedef struct window {
    void *base;
    size_t bytes;
    bool is_own;
} window;

typedef struct self {
    window *windows;
    uint32_t count, room;
} self;

typedef struct channel {
    uint64_t posted;
} channel;

static void *self_open(tern_group *group, tern_error *err)
{
    (void)group;
    return tern__alloc(sizeof(self), "tern_group_open", err);
}

static void self_window_close(void *state, uint32_t number)
{
    window *w = &((self *)state)->windows[number];
    if (w->is_own) munmap(w->base, w->bytes);
    *w = (window){0};
}

static void self_close(void *state)
{
    self *of = state;
    for (uint32_t i = 0; i < of->count; i++) self_window_close(of, i);
    tern__free(of->windows);
    tern__free(of);
}

static int reserve(self *of, tern_error *err)
{
    if (of->count < of->room) return TERN_OK;
    uint32_t room = TERN__MAX(8, 2 * of->room);
    window *grown = tern__realloc_array(of->windows, of->room * sizeof(*grown), room * sizeof(*grown),
                                        "tern_group_mem_alloc", err);
    if (!grown) return TERN_E_MEMORY;
    of->windows = grown;
    of->room = room;
    return TERN_OK;
}

static int self_window_open(void *state, void *base, size_t bytes, uint32_t *number, tern_error *err)
{
    self *of = state;
    window w = {.base = base, .bytes = bytes, .is_own = !base};
    int status = reserve(of, err);
    if (status) return status;
    if (!base) w.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w.base == MAP_FAILED)
        return tern__error_errno(err, "tern_group_mem_alloc", TERN_E_MEMORY, "cannot map %zu bytes", bytes);
    *number = of->count++;
    of->windows[*number] = w;
    return TERN_OK;
}

static void *self_window_base(void *state, uint32_t number)
{
    return ((self *)state)->windows[number].base;
}

static void *self_channel_open(void *state, int slots, tern_error *err)
{
    (void)state;
    (void)slots;
    return tern__alloc(sizeof(channel), "tern_group_open", err);
}

static void self_channel_close(void *of)
{
    tern__free(of);
}

static int self_post(void *of, const tern__post *post, uint64_t *seq, tern_error *err)
{
    (void)post;
    (void)err;
    *seq = ++((channel *)of)->posted;
    return TERN_OK;
}

static int self_progress(void *of, tern_error *err)
{
    (void)of;
    (void)err;
    return TERN_OK;
}

static int self_await(void *of, uint64_t seq, tern_error *err)
{
    uint64_t posted = ((channel *)of)->posted;
    if (seq <= posted) return TERN_OK;
    return tern__error_set(err, "tern_work_wait", TERN_E_STATE, "work %llu was not posted, the last is %llu",
                           (unsigned long long)seq, (unsigned long long)posted);
}

const tern__comm_backend tern__comm_self = {
    .name = "self",
    .open = self_open,
    .close = self_close,
    .window_open = self_window_open,
    .window_base = self_window_base,
    .window_close = self_window_close,
    .channel_open = self_channel_open,
    .channel_close = self_channel_close,
    .post = self_post,
    .progress = self_progress,
    .test = self_await,
    .wait = self_await,
};
