/* channel.c - the order of works, and which rank reduces which part.
 *
 * A rank posts a work by writing its descriptor into the work's slot and then setting its `posted` word to
 * the work's number. Once all ranks have posted it, its buffers belong to the channel. Any rank that calls in
 * takes chunks, first of its own slice and then of the other slices. It reduces a chunk over all ranks'
 * windows and writes the result to all of them. A chunk is claimed by compare-and-swap, so only one rank
 * touches it. `done` counts the finished chunks and changes only by read-modify-write, so a rank that reads
 * the full count with acquire sees every rank's writes. That rank then advances its `retired` word, and the
 * buffers are its own again.
 *
 * If the result goes to memory that only one rank sees, that rank must compute it: every rank then has one
 * chunk, its own.
 *
 * A slot is reused only when all ranks have retired the work that had it, so no rank still reads it. The only
 * things that other ranks need from a late rank are its posts, and its own chunk if it has one.
 *
 * Why no order of events can block this: take the first work m that is not retired. A rank that has not
 * posted m, or has not done its own chunk of m, is running, or is blocked elsewhere in tern, where it still
 * progresses, or waits for a free slot. The slot is that of work m - slots, which every blocked rank retires
 * itself. */
#include "comm/move/window/native.h"

#include "base/text.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the slowest rank ---- */

/* Returns min(words). While the slowest rank's word is unchanged, the other words need not be read. */
static uint64_t least(const tern__word *words, int world, int *last, uint64_t known)
{
    uint64_t low = atomic_load(&words[*last].value);
    if (low == known) return known;
    for (int rank = 0; rank < world; rank++) {
        uint64_t value = atomic_load(&words[rank].value);
        if (value >= low) continue;
        low = value;
        *last = rank;
    }
    return low;
}

uint64_t tern__channel_all_posted(tern__channel *channel)
{
    channel->all_posted =
        least(channel->posted, channel->native->world, &channel->posted_last, channel->all_posted);
    return channel->all_posted;
}

uint64_t tern__channel_all_retired(tern__channel *channel)
{
    channel->all_retired =
        least(channel->retired, channel->native->world, &channel->retired_last, channel->all_retired);
    return channel->all_retired;
}

uint64_t tern__channel_blocker(const tern__channel *channel)
{
    return channel->own_retired + 1;
}

bool tern__channel_owes_chunk(tern__channel *channel, uint64_t seq, int rank)
{
    const tern__task *task = &channel->tasks[seq & (channel->slots - 1)];
    return tern__channel_all_posted(channel) >= seq && task->is_own && tern__task_chunks(task, rank) &&
           !tern__tagged(atomic_load(&tern__slot_claim(channel, seq)[rank].value), seq);
}

/* ---- claiming ---- */

static bool take(tern__word *claim, uint64_t seq, uint64_t limit, uint64_t *index)
{
    uint64_t seen = atomic_load_explicit(&claim->value, memory_order_relaxed), n;
    do {
        n = tern__tagged(seen, seq);
        if (n >= limit) return false;
    } while (!atomic_compare_exchange_weak(&claim->value, &seen, tern__tag(seq, n + 1)));
    *index = n;
    return true;
}

static uint64_t bump(tern__word *done, uint64_t seq)
{
    uint64_t seen = atomic_load_explicit(&done->value, memory_order_relaxed), n;
    do n = tern__tagged(seen, seq) + 1;
    while (!atomic_compare_exchange_weak(&done->value, &seen, tern__tag(seq, n)));
    return n;
}

static void finish_chunk(tern__channel *channel, const tern__task *task, uint64_t seq)
{
    tern__word *done = tern__slot_claim(channel, seq) + channel->native->world;
    if (bump(done, seq) == task->chunks) tern__lobby_ring(channel->native->lobby);
}

static void run_slice(tern__channel *channel, const tern__task *task, uint64_t seq, int owner)
{
    uint64_t chunks = tern__task_chunks(task, owner), index;
    while (take(&tern__slot_claim(channel, seq)[owner], seq, chunks, &index)) {
        tern__task_run(channel, task, owner, index);
        finish_chunk(channel, task, seq);
    }
}

/* All ranks have posted `seq`: compares their descriptors, then takes chunks until none is left. */
static int run_work(tern__channel *channel, uint64_t seq, tern_error *err)
{
    const tern__native *native = channel->native;
    const tern__task *task = &channel->tasks[seq & (channel->slots - 1)];
    int64_t began = tern__trace_now(native->group->trace);
    int status = tern__tally_take(channel, seq, err);
    if (status || !task->chunks) return status;
    int slices = task->is_own ? 1 : native->world;
    for (int i = 0; i < slices; i++) run_slice(channel, task, seq, (native->rank + i) % native->world);
    tern__work_trace(channel, seq, TERN__TRACK_REDUCE, began);
    return TERN_OK;
}

static bool is_done(const tern__channel *channel, uint64_t seq)
{
    uint64_t chunks = channel->tasks[seq & (channel->slots - 1)].chunks;
    tern__word *done = tern__slot_claim(channel, seq) + channel->native->world;
    return !chunks || tern__tagged(atomic_load(&done->value), seq) == chunks;
}

static void retire(tern__channel *channel)
{
    uint64_t before = channel->own_retired;
    while (channel->own_retired < channel->claimed && is_done(channel, channel->own_retired + 1))
        channel->own_retired++;
    if (channel->own_retired == before) return;
    channel->native->root->acts++;
    atomic_store(&channel->retired[channel->native->rank].value, channel->own_retired);
    bool has_sleepers = atomic_load(&channel->native->lobby->sleepers) != 0;
    if (has_sleepers && tern__channel_all_retired(channel) == channel->own_retired)
        tern__lobby_ring(channel->native->lobby);
}

/* After a failure: counts works that all ranks had finished before it as done, however late this rank looks.
 * Touches no data. */
static void settle(tern__channel *channel)
{
    while (channel->claimed < channel->all_posted && is_done(channel, channel->claimed + 1) &&
           !tern__tally_take(channel, channel->claimed + 1, NULL))
        channel->claimed++;
}

/* `inside` tells a peer that closes after a failure that its memory is still in use. It is stored before the
 * check for that failure, so either this rank sees the failure or the peer sees `inside`. */
int tern__channel_progress(void *self, tern_error *err)
{
    tern__channel *channel = self;
    int status = TERN_OK;
    uint64_t all = tern__channel_all_posted(channel);
    if (channel->claimed < all) {
        tern__word *inside = &channel->inside[channel->native->rank];
        atomic_store(&inside->value, channel->claimed + 1);
        status = tern__native_check(channel->native, err);
        while (!status && channel->claimed < all) {
            status = run_work(channel, channel->claimed + 1, err);
            channel->claimed += !status;
            channel->native->root->acts++;
        }
        atomic_store_explicit(&inside->value, 0, memory_order_release);
    } else {
        status = tern__native_check(channel->native, err);
    }
    if (status) settle(channel);
    if (channel->own_retired < channel->claimed) retire(channel);
    return status;
}

/* ---- posting ---- */

static bool has_room(const tern__goal *goal)
{
    return tern__channel_all_retired(goal->channel) + goal->channel->slots >= goal->seq;
}

static int check_post(const tern__channel *channel, const tern__post *post, uint64_t count, tern_error *err)
{
    const tern__native *native = channel->native;
    size_t size = tern_dtype_bytes(post->dtype);
    for (int i = 0; i < post->extent_count; i++) {
        const tern__extent *e = &post->extents[i];
        const tern__window *window = e->window < native->window_count ? native->windows[e->window] : NULL;
        if (!window || e->offset > window->mapped || e->count > (window->mapped - e->offset) / size)
            return tern__error_set(err, "tern_backward", TERN_E_RANGE,
                                   "extent %d, %llu elements at byte %llu, is not inside window %u", i,
                                   (unsigned long long)e->count, (unsigned long long)e->offset, e->window);
    }
    bool has_parts = post->kind == TERN__ALL_GATHER || post->kind == TERN__REDUCE_SCATTER;
    if (has_parts && !post->only_meets && count % (uint64_t)native->world)
        return tern__error_set(err, "tern_backward", TERN_E_SHAPE,
                               "cannot cut %llu elements into %d equal parts", (unsigned long long)count,
                               native->world);
    return TERN_OK;
}

int tern__channel_post(void *self, const tern__post *post, uint64_t *seq, tern_error *err)
{
    tern__channel *channel = self;
    tern__native *native = channel->native;
    tern__desc desc;
    tern__desc_write(&desc, post);
    tern__goal room = {.is_met = has_room, .channel = channel, .seq = channel->own_posted + 1};
    int status = tern__post_check(post, err);
    if (!status) status = check_post(channel, post, desc.count, err);
    if (!status && channel->all_retired + channel->slots < room.seq && !has_room(&room))
        status = tern__native_await(native, &room, err);
    if (!status) status = tern__native_check(native, err);
    if (status) return status;
    *seq = ++channel->own_posted;
    tern__task_cut(&channel->tasks[*seq & (channel->slots - 1)], post, desc.count, native->world);
    tern__tally_say(channel, *seq, post, &desc);
    if (!native->group->whole) tern__desc_say(native->control, &desc, *seq, native->where);
    atomic_store(&channel->posted[native->rank].value, *seq);
    native->root->acts++;
    if (atomic_load(&native->lobby->sleepers) && tern__channel_all_posted(channel) == *seq)
        tern__lobby_ring(native->lobby);
    return TERN_OK;
}

void tern__channel_mark(void *self, uint64_t backward, uint32_t folded)
{
    const tern__channel *channel = self;
    tern__word *word = &channel->marked[channel->native->rank];
    atomic_store_explicit(&word->value, tern__tag(backward, folded), memory_order_relaxed);
}

/* ---- finishing ---- */

int tern__channel_test(void *self, uint64_t seq, tern_error *err)
{
    tern__channel *channel = self;
    int status = channel->own_retired >= seq ? TERN_OK : tern__channel_progress(channel, err);
    bool is_over = channel->own_retired >= seq;
    if (status && is_over) return tern__native_pardon(err);
    return status || is_over ? status : TERN_PENDING;
}

static bool is_retired(const tern__goal *goal)
{
    return goal->channel->own_retired >= goal->seq;
}

int tern__channel_wait(void *self, uint64_t seq, tern_error *err)
{
    tern__channel *channel = self;
    int status = tern__channel_test(channel, seq, err);
    if (status != TERN_PENDING) return status;
    tern__goal goal = {.is_met = is_retired, .channel = channel, .seq = seq};
    return tern__native_await(channel->native, &goal, err);
}

/* ---- life ---- */

static void lay_out(tern__channel *channel)
{
    size_t world = (size_t)channel->native->world;
    channel->posted = (tern__word *)((char *)channel->base + sizeof(tern__shared_head));
    channel->retired = channel->posted + world;
    channel->inside = channel->retired + world;
    channel->closed = channel->inside + world;
    channel->marked = channel->closed + world;
    channel->slot = (char *)(channel->marked + world);
}

static void release(tern__channel *channel)
{
    tern__shared_close(channel->native, channel->base, channel->bytes);
    tern__free(channel->tasks);
    tern__free(channel->at);
    tern__free(channel->to);
    tern__free(channel->shadows);
    tern__free(channel->weights);
    tern__free(channel);
}

static bool alloc_own(tern__channel *channel, size_t world, tern_error *err)
{
    const char *func = "tern_group";
    channel->tasks = tern__alloc(channel->slots * sizeof(*channel->tasks), func, err);
    channel->at = tern__alloc(world * sizeof(*channel->at), func, err);
    channel->to = tern__alloc(world * sizeof(*channel->to), func, err);
    channel->shadows = tern__alloc((channel->slots + 1) * world * sizeof(*channel->shadows), func, err);
    channel->weights = tern__alloc(channel->slots * world * sizeof(*channel->weights), func, err);
    return channel->tasks && channel->at && channel->to && channel->shadows && channel->weights;
}

void *tern__channel_open(void *state, int slots, tern_error *err)
{
    tern__native *native = state;
    size_t world = (size_t)native->world, room = 2;
    while (room < (size_t)TERN__MAX(slots, 2)) room *= 2;
    tern__channel *channel = tern__alloc(sizeof(*channel), "tern_group", err);
    if (!channel) return NULL;
    channel->native = native;
    channel->slots = room;
    channel->slot_bytes =
        world * (sizeof(tern__desc) + sizeof(tern__mean_part)) + (world + 1) * sizeof(tern__word);
    channel->bytes = sizeof(tern__shared_head) + 5 * world * sizeof(tern__word) + room * channel->slot_bytes;
    if (!alloc_own(channel, world, err) || tern__shared_open(native, channel->bytes, &channel->base, err)) {
        release(channel);
        return NULL;
    }
    lay_out(channel);
    channel->next = native->root->channels;
    native->root->channels = channel;
    if (!native->first) native->first = channel;
    return channel;
}

/* Waits for the ranks of this process, which share mappings: after a failure one of them may still be in a
 * chunk. It will see the failure before it takes the next one. */
static void await_outside(const tern__channel *channel)
{
    for (int rank = 0; rank < channel->native->world; rank++)
        while (rank != channel->native->rank && atomic_load(&channel->inside[rank].value) &&
               tern__group_is_same_process(channel->native->group, rank))
            sched_yield();
}

static void fail_unfinished(const tern__channel *channel)
{
    const tern__native *native = channel->native;
    const tern_error *why = &native->group->root->error;
    int name = tern_group_world_rank(native->group, native->rank);
    char text[TERN_ERROR_TEXT];
    if (why->code)
        tern__message_format(text, sizeof(text), "rank %d failed: %s", name, why->text);
    else
        snprintf(text, sizeof(text), "rank %d has closed its group before work %llu was done", name,
                 (unsigned long long)(channel->own_retired + 1));
    tern__native_fail(native, TERN_E_PEER, text, NULL);
}

static void leave(const tern__channel *channel)
{
    const tern__native *native = channel->native;
    if (channel->own_posted != channel->own_retired) {
        fail_unfinished(channel);
        await_outside(channel);
    }
    bool has_failed = native->group->root->error.code || !tern__control_is_healthy(native->control);
    if (has_failed) return; /* the control plane tells the peers */
    atomic_store(&channel->closed[native->rank].value, 1);
    tern__lobby_ring(native->lobby);
}

void tern__channel_close(void *self)
{
    tern__channel *channel = self;
    tern__channel **link = &channel->native->root->channels;
    while (*link != channel) link = &(*link)->next;
    *link = channel->next;
    if (channel->native->first == channel) channel->native->first = NULL;
    if (channel->native->pid == getpid()) leave(channel);
    release(channel);
}
