/* backend.c - the debug back end's functions: each logs its call and passes it to the back end behind. */
#include "comm/call/debug/debug.h"

#include "comm/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* A posted work, until this rank has seen that it is done. */
typedef struct work {
    tern__flight flight;
    uint64_t seq; /* 0: none */
    bool comes_back;
} work;

typedef struct channel {
    tern__debug *debug;
    void *behind;
    int number;
    uint64_t slots, posted;
    work *works; /* [slots] */
} channel;

/* ---- state ---- */

static void close_mirror(tern__debug_mirror *mirror)
{
    if (mirror->is_own) munmap(mirror->base, mirror->bytes);
    if (mirror->is_sparse) tern__close(&mirror->fd);
    *mirror = (tern__debug_mirror){0};
}

static void debug_close(void *state)
{
    tern__debug *debug = state;
    tern__progress_hook_remove(&debug->group->hooks, &debug->hook);
    for (uint32_t i = 0; i < debug->mirror_room; i++) close_mirror(&debug->mirrors[i]);
    if (debug->state) debug->behind->close(debug->state);
    tern__debug_say(debug, "closed");
    tern__debug_messages_free(debug);
    tern__debug_calls_free(debug);
    tern__debug_close(debug);
    tern__free(debug->mirrors);
    tern__free(debug);
}

static void *debug_open(tern_group *group, tern_error *err)
{
    tern__debug *debug = tern__alloc(sizeof(*debug), "tern_group_open", err);
    if (!debug) return NULL;
    *debug =
        (tern__debug){.hook = {.progress = tern__debug_progress}, .group = group, .behind = group->behind};
    if (!tern__debug_open(debug, err)) debug->state = debug->behind->open(group, err);
    group->reaches_own = false; /* its copies are in windows */
    if (!debug->state) {
        tern__debug_close(debug);
        tern__free(debug);
        return NULL;
    }
    tern__progress_hook_add(&group->hooks, &debug->hook);
    tern__debug_say(debug, "open: %d ranks, %s behind", group->boot.world, group->backend_name);
    return debug;
}

/* ---- windows ---- */

static int add_mirror(tern__debug *debug, uint32_t number, const tern__window_opts *opts, tern_error *err)
{
    tern__debug_mirror mirror = {.is_own = !opts->base, .is_sparse = opts->is_sparse, .bytes = opts->bytes};
    void *base = opts->base;
    int status = tern__array_reserve(&debug->mirrors, &debug->mirror_room, number + 1,
                                     sizeof(*debug->mirrors), "tern_group_mem_alloc", err);
    if (!status && !base)
        status = tern__segment_create_alone(&base, opts->bytes, opts->is_sparse, &mirror.fd, err);
    if (status) return status;
    mirror.base = base;
    mirror.twin = debug->behind->window_at(debug->state, number, debug->group->boot.rank);
    debug->mirrors[number] = mirror;
    return TERN_OK;
}

static int debug_window_open(void *state, tern__window_opts *opts, uint32_t *window, tern_error *err)
{
    tern__debug *debug = state;
    tern__window_opts twin = {.bytes = opts->bytes, .is_sparse = opts->is_sparse};
    int status = debug->behind->window_open(debug->state, &twin, window, err);
    if (status) return tern__debug_tell(debug, status, err);
    opts->bytes = twin.bytes;
    status = add_mirror(debug, *window, opts, err);
    if (status)
        debug->behind->window_close(debug->state, *window);
    else
        tern__debug_say(debug, "window %u open: %zu bytes", *window, opts->bytes);
    return tern__debug_tell(debug, status, err);
}

static char *debug_window_at(void *state, uint32_t window, int rank)
{
    const tern__debug *debug = state;
    if (rank == debug->group->boot.rank) return debug->mirrors[window].base;
    return debug->behind->window_at(debug->state, window, rank);
}

static void debug_window_close(void *state, uint32_t window)
{
    tern__debug *debug = state;
    close_mirror(&debug->mirrors[window]);
    debug->behind->window_close(debug->state, window);
    tern__debug_say(debug, "window %u closed", window);
}

static int debug_window_commit(void *state, uint32_t window, size_t offset, size_t bytes, bool has_pages,
                               tern_error *err)
{
    tern__debug *debug = state;
    const tern__debug_mirror *mirror = &debug->mirrors[window];
    int status = debug->behind->window_commit(debug->state, window, offset, bytes, has_pages, err);
    if (status) return tern__debug_tell(debug, status, err);
    status = tern__segment_commit(mirror->fd, mirror->base, offset, bytes, has_pages, err);
    if (status)
        debug->behind->window_commit(debug->state, window, offset, bytes, false, NULL);
    else
        tern__debug_say(debug, "window %u: %zu bytes at %zu %s", window, bytes, offset,
                        has_pages ? "allocated" : "freed");
    return tern__debug_tell(debug, status, err);
}

/* ---- works ---- */

static void work_describe(const channel *c, const tern__post *post, uint64_t seq, char *text, size_t size)
{
    tern__desc desc;
    char words[TERN__WORK_TEXT];
    tern__desc_write(&desc, post);
    tern__desc_text(&desc, seq, words, sizeof(words));
    snprintf(text, size, "channel %d, place %llu: %s", c->number, (unsigned long long)seq, words);
}

/* True if the result goes to this rank's extents. */
static bool comes_back(const channel *c, const tern__post *post)
{
    if (post->out || post->only_meets || tern__kind_is_move(post->kind)) return false;
    return post->kind != TERN__REDUCE || post->root == c->debug->group->boot.rank;
}

/* True if the result goes to a part of the input at `at`. */
static bool is_in_place(const tern__post *post, int world, const char *at, size_t bytes)
{
    const char *out = post->out;
    bool is = out && at <= out && out < at + bytes;
    for (int rank = 0; post->takes && rank < world; rank++) {
        const char *to = post->takes[rank].to;
        is |= post->takes[rank].count && at <= to && to < at + bytes;
    }
    return is;
}

/* Adds an extent that the work reads or writes on this rank. */
static int add_extent(const tern__debug *debug, work *w, const tern__post *post, const tern__extent *e,
                      tern_error *err)
{
    size_t size = tern_dtype_bytes(post->dtype);
    const tern__debug_mirror *mirror = e->window < debug->mirror_room ? &debug->mirrors[e->window] : NULL;
    if (!mirror || !mirror->base)
        return tern__error_set(err, "tern_work_wait", TERN_E_INVALID, "%s uses window %u, which is not open",
                               w->flight.text, e->window);
    if (e->offset > mirror->bytes || e->count > (mirror->bytes - e->offset) / size)
        return tern__error_set(err, "tern_work_wait", TERN_E_INVALID,
                               "%s uses %llu %s from byte %llu of window %u, which has %zu bytes",
                               w->flight.text, (unsigned long long)e->count, tern_dtype_name(post->dtype),
                               (unsigned long long)e->offset, e->window, mirror->bytes);
    tern__debug_range range = {
        .at = mirror->base + e->offset,
        .bytes = e->count * size,
        .is_written = w->comes_back,
        .is_kept = !is_in_place(post, debug->group->boot.world, mirror->base + e->offset, e->count * size),
        .window = e->window,
        .offset = e->offset};
    return range.bytes ? tern__flight_add(&w->flight, &range, err) : TERN_OK;
}

static int add_outside(work *w, void *at, size_t bytes, tern_error *err)
{
    tern__debug_range range = {.at = at, .bytes = bytes, .is_written = true, .window = TERN__NO_WINDOW};
    return bytes ? tern__flight_add(&w->flight, &range, err) : TERN_OK;
}

/* Adds the memory at `out`, for a result that does not go to the extents; in an all_gather one part per rank.
 */
static int add_out(const channel *c, work *w, const tern__post *post, tern_error *err)
{
    size_t count = 0, world = (size_t)c->debug->group->boot.world, size = tern_dtype_bytes(post->dtype);
    bool gathers = post->kind == TERN__ALL_GATHER;
    int status = TERN_OK;
    for (int i = 0; i < post->extent_count; i++) count += post->extents[i].count;
    if (gathers || post->kind == TERN__REDUCE_SCATTER) count /= world;
    for (size_t i = 0; i < (gathers ? world : 1) && !status; i++)
        status = add_outside(w, (char *)post->out + i * post->stride * size, count * size, err);
    return status;
}

static int add_takes(const channel *c, work *w, const tern__post *post, tern_error *err)
{
    int status = TERN_OK;
    for (int rank = 0; rank < c->debug->group->boot.world && !status; rank++)
        status = add_outside(w, post->takes[rank].to, post->takes[rank].count * tern_dtype_bytes(post->dtype),
                             err);
    return status;
}

static int add_ranges(const channel *c, work *w, const tern__post *post, tern_error *err)
{
    int status = TERN_OK;
    w->flight.count = 0;
    w->comes_back = comes_back(c, post);
    if (post->only_meets) return TERN_OK;
    for (int i = 0; i < post->extent_count && !status; i++)
        status = add_extent(c->debug, w, post, &post->extents[i], err);
    if (!status && post->out) status = add_out(c, w, post, err);
    if (!status && tern__kind_is_move(post->kind)) status = add_takes(c, w, post, err);
    return status;
}

/* Copies the ranges to their twins, or back from them. */
static void copy_ranges(const tern__debug *debug, const tern__flight *flight, bool comes_back)
{
    for (int i = 0; i < flight->count; i++) {
        const tern__debug_range *range = &flight->ranges[i];
        if (range->window == TERN__NO_WINDOW) continue;
        char *twin = debug->mirrors[range->window].twin + range->offset;
        if (comes_back)
            memcpy(range->at, twin, range->bytes);
        else
            memcpy(twin, range->at, range->bytes);
    }
}

static int flight_finish(channel *c, work *w, tern_error *err)
{
    int status = tern__flight_check(&w->flight, err);
    double us = (double)(tern__now_ns() - w->flight.began) * 1e-3;
    if (!status && w->comes_back) copy_ranges(c->debug, &w->flight, true);
    if (!status) tern__debug_say(c->debug, "done after %.0f us: %s", us, w->flight.text);
    tern__flight_drop(&c->debug->flights, &w->flight);
    w->seq = 0;
    return status;
}

/* Finishes all works up to `seq`, in order. */
static int finish_to(channel *c, uint64_t seq, tern_error *err)
{
    int status = TERN_OK;
    for (uint64_t i = seq > c->slots ? seq - c->slots + 1 : 1; i <= seq && !status; i++) {
        work *w = &c->works[i % c->slots];
        if (w->seq == i) status = flight_finish(c, w, err);
    }
    return status;
}

/* ---- channels ---- */

static void *debug_channel_open(void *state, const tern__channel_opts *opts, tern_error *err)
{
    tern__debug *debug = state;
    channel *c = tern__alloc(sizeof(*c), "tern_group_open", err);
    if (!c) return NULL;
    *c = (channel){.debug = debug, .number = debug->channels++, .slots = (uint64_t)TERN__MAX(opts->slots, 1)};
    c->works = tern__alloc(c->slots * sizeof(*c->works), "tern_group_open", err);
    if (c->works) c->behind = debug->behind->channel_open(debug->state, opts, err);
    if (c->behind) {
        tern__debug_say(debug, "channel %d open: %d slots", c->number, opts->slots);
        return c;
    }
    tern__free(c->works);
    tern__free(c);
    return NULL;
}

static void free_work(channel *c, work *w)
{
    if (w->seq) {
        tern__flight_drop(&c->debug->flights, &w->flight);
        if (!c->debug->group->root->error.code)
            tern__debug_say(c->debug, "E_STATE: nobody waited for %s", w->flight.text);
    }
    tern__free(w->flight.ranges);
}

static void debug_channel_close(void *of)
{
    channel *c = of;
    tern__debug_say(c->debug, "channel %d closed", c->number);
    for (uint64_t i = 0; i < c->slots; i++) free_work(c, &c->works[i]);
    c->debug->behind->channel_close(c->behind);
    tern__free(c->works);
    tern__free(c);
}

/* Waits for the work that has the slot, if there is one, just as the back end behind does. */
static int make_room(channel *c, const work *w, tern_error *err)
{
    if (!w->seq) return TERN_OK;
    int status = c->debug->behind->wait(c->behind, w->seq, err);
    return status ? status : finish_to(c, w->seq, err);
}

static int work_begin(channel *c, work *w, const tern__post *post, tern_error *err)
{
    int status = make_room(c, w, err);
    if (status) return status;
    work_describe(c, post, c->posted + 1, w->flight.text, sizeof(w->flight.text));
    status = add_ranges(c, w, post, err);
    return status ? status : tern__flight_begin(&c->debug->flights, &w->flight, err);
}

static int debug_post(void *of, const tern__post *post, uint64_t *seq, tern_error *err)
{
    channel *c = of;
    work *w = &c->works[(c->posted + 1) % c->slots];
    int status = work_begin(c, w, post, err);
    if (status) return tern__debug_tell(c->debug, status, err);
    tern__debug_say(c->debug, "post %s", w->flight.text);
    copy_ranges(c->debug, &w->flight, false);
    status = c->debug->behind->post(c->behind, post, seq, err);
    if (status)
        tern__flight_drop(&c->debug->flights, &w->flight);
    else
        w->seq = ++c->posted;
    return tern__debug_tell(c->debug, status, err);
}

static int debug_test(void *of, uint64_t seq, tern_error *err)
{
    channel *c = of;
    int status = c->debug->behind->test(c->behind, seq, err);
    work *w = &c->works[seq % c->slots];
    if (!status && w->seq == seq) status = flight_finish(c, w, err);
    return tern__debug_tell(c->debug, status, err);
}

static int debug_wait(void *of, uint64_t seq, tern_error *err)
{
    channel *c = of;
    int64_t began = tern__now_ns();
    int status = c->debug->behind->wait(c->behind, seq, err);
    if (!status) status = finish_to(c, seq, err);
    tern__debug_say(c->debug, "waited %.0f us for channel %d, place %llu",
                    (double)(tern__now_ns() - began) * 1e-3, c->number, (unsigned long long)seq);
    return tern__debug_tell(c->debug, status, err);
}

static void debug_note(void *of, const tern__label *label)
{
    channel *c = of;
    char text[80] = "";
    if (label->kind) label->kind->text(label, text, sizeof(text));
    tern__debug_say(c->debug, "channel %d: begins %s", c->number, text);
    c->debug->behind->note(c->behind, label);
}

static const tern__tally *debug_tally(void *of, uint64_t seq)
{
    channel *c = of;
    return c->debug->behind->tally(c->behind, seq);
}

const tern__comm_backend tern__comm_debug = {
    .name = "debug",
    .open = debug_open,
    .close = debug_close,
    .window_open = debug_window_open,
    .window_at = debug_window_at,
    .window_close = debug_window_close,
    .window_commit = debug_window_commit,
    .channel_open = debug_channel_open,
    .channel_close = debug_channel_close,
    .post = debug_post,
    .test = debug_test,
    .wait = debug_wait,
    .tally = debug_tally,
    .note = debug_note,
    .transfer_start = tern__debug_transfer_start,
    .transfer_wait = tern__debug_transfer_wait,
    .transfer_drop = tern__debug_transfer_drop,
};
