/* channel.c - which rank does which chunk of a work, in windows that all ranks see.
 *
 * Once all ranks have posted a work (meet/meeting.c), its buffers belong to the channel. Any rank that
 * calls in takes chunks, first of its own slice and then of the other slices. It reduces a chunk over all
 * ranks' windows and writes the result to all of them. A chunk is claimed by compare-and-swap, so only one
 * rank touches it. `done` counts the finished chunks and changes only by read-modify-write, so a rank that
 * reads the full count with acquire sees every rank's writes.
 *
 * If the result goes to memory that only one rank sees, that rank must compute it: every rank then has one
 * chunk, its own.
 *
 * The data of a small work is *carried* by the posts: each rank copies it to the work's slot, and when all
 * have posted, each computes its own result from the copies. So no rank waits for what another one computes,
 * and the memory of a rank is touched by itself alone.
 *
 * A work's words in shared memory are claim[world] and `done`, tagged (seq, n): a word with another seq
 * reads as n = 0. Behind them is carried[world], for works whose data does not fit the descriptors. */
#include "comm/move/window/mailbox.h"

/* ---- claiming chunks ---- */

static tern__word *claims_of(const tern__channel *channel, uint64_t seq)
{
    return tern__meeting_words(channel->meeting, seq);
}

static tern__word *done_of(const tern__channel *channel, uint64_t seq)
{
    return claims_of(channel, seq) + channel->windows->ranks.world;
}

/* Returns where rank 0 has its data of a work that is carried, each other rank a line behind the one before
 * it: in the descriptors, if it fits there beside what is compared. */
static char *carried_at(const tern__channel *channel, uint64_t seq)
{
    tern__desc *desc = tern__meeting_desc(channel->meeting, seq);
    bool is_placed = tern__meeting_work(channel->meeting, seq)->post.is_placed;
    if (is_placed && tern__channel_cut(channel, seq)->carried <= sizeof(desc->carried)) return desc->carried;
    return ((tern__carried *)(done_of(channel, seq) + 1))->data;
}

static bool claim_chunk(tern__word *claim, uint64_t seq, uint64_t limit, uint64_t *index)
{
    uint64_t seen = atomic_load_explicit(&claim->value, memory_order_relaxed), n;
    do {
        n = tern__tagged(seen, seq);
        if (n >= limit) return false;
    } while (!atomic_compare_exchange_weak(&claim->value, &seen, tern__tag(seq, n + 1)));
    *index = n;
    return true;
}

static uint64_t count_done(tern__word *done, uint64_t seq)
{
    uint64_t seen = atomic_load_explicit(&done->value, memory_order_relaxed), n;
    do n = tern__tagged(seen, seq) + 1;
    while (!atomic_compare_exchange_weak(&done->value, &seen, tern__tag(seq, n)));
    return n;
}

static void run_slice(tern__channel *channel, uint64_t seq, int owner)
{
    const tern__cut *cut = tern__channel_cut(channel, seq);
    uint64_t index, chunks = tern__cut_chunks(cut, tern__meeting_work(channel->meeting, seq), owner);
    while (claim_chunk(&claims_of(channel, seq)[owner], seq, chunks, &index)) {
        tern__chunk_run(channel, seq, owner, index);
        if (count_done(done_of(channel, seq), seq) == cut->chunks)
            tern__shm_wake(channel->windows->ranks.shm);
    }
}

/* ---- what the meeting calls ---- */

static void cut_work(void *of, uint64_t seq)
{
    const tern__channel *channel = of;
    const tern__met *work = tern__meeting_work(channel->meeting, seq);
    tern__cut *cut = tern__channel_cut(channel, seq);
    tern__cut_make(cut, work, channel->windows->ranks.world);
    if (!cut->carried) return;
    char *own = carried_at(channel, seq) + channel->windows->ranks.rank * TERN__LINE;
    tern__carried_write(channel, work, own, cut->carried);
}

static bool run_work(void *of, uint64_t seq)
{
    tern__channel *channel = of;
    const tern__cut *cut = tern__channel_cut(channel, seq);
    int rank = channel->windows->ranks.rank, world = channel->windows->ranks.world;
    if (cut->carried)
        tern__carried_run(channel, tern__meeting_work(channel->meeting, seq), carried_at(channel, seq),
                          cut->carried);
    if (!cut->chunks) return cut->carried;
    for (int i = 0; i < (cut->is_own ? 1 : world); i++) run_slice(channel, seq, (rank + i) % world);
    return true;
}

static bool work_is_done(const void *of, uint64_t seq)
{
    const tern__channel *channel = of;
    uint64_t chunks = tern__channel_cut(channel, seq)->chunks;
    return !chunks || tern__tagged(atomic_load(&done_of(channel, seq)->value), seq) == chunks;
}

static bool work_is_carried(const void *of, uint64_t seq)
{
    return tern__channel_cut(of, seq)->carried;
}

static bool owes_chunk(const void *of, uint64_t seq, int rank)
{
    const tern__channel *channel = of;
    const tern__cut *cut = tern__channel_cut(channel, seq);
    return cut->is_own && tern__cut_chunks(cut, tern__meeting_work(channel->meeting, seq), rank) &&
           !tern__tagged(atomic_load(&claims_of(channel, seq)[rank].value), seq);
}

/* ---- the interface ---- */

static int check_post(const tern__channel *channel, const tern__post *post, tern_error *err)
{
    const tern__window_state *windows = channel->windows;
    size_t size = tern_dtype_bytes(post->dtype);
    uint64_t count = 0;
    for (int i = 0; i < post->extent_count; i++) {
        const tern__extent *e = &post->extents[i];
        const tern__window *window = e->window < windows->count ? windows->list[e->window] : NULL;
        count += e->count;
        if (e->window == TERN__OWN_MEMORY && e->count * size <= sizeof(tern__carried)) continue;
        if (!window || e->offset > window->mapped || e->count > (window->mapped - e->offset) / size)
            return tern__error_set(err, "tern_backward", TERN_E_RANGE,
                                   "extent %d, %llu elements at byte %llu, is not inside window %u", i,
                                   (unsigned long long)e->count, (unsigned long long)e->offset, e->window);
    }
    bool has_parts = post->kind == TERN__ALL_GATHER || post->kind == TERN__REDUCE_SCATTER;
    if (has_parts && !post->only_meets && count % (uint64_t)windows->ranks.world)
        return tern__error_set(err, "tern_backward", TERN_E_SHAPE,
                               "cannot cut %llu elements into %d equal parts", (unsigned long long)count,
                               windows->ranks.world);
    return TERN_OK;
}

static int channel_post(void *self, const tern__post *post, uint64_t *seq, tern_error *err)
{
    const tern__channel *channel = self;
    int rank = channel->windows->ranks.rank;
    int status = tern__post_check(post, err);
    if (!status) status = check_post(channel, post, err);
    if (status) return status;
    if (post->has_table) tern__table_write(post, tern__window_at(channel->windows, post->table_window, rank));
    return tern__meeting_post(channel->meeting, post, seq, err);
}

static int channel_test(void *self, uint64_t seq, tern_error *err)
{
    return tern__meeting_test(((tern__channel *)self)->meeting, seq, err);
}

static int channel_wait(void *self, uint64_t seq, tern_error *err)
{
    return tern__meeting_wait(((tern__channel *)self)->meeting, seq, err);
}

static void channel_note(void *self, const tern__label *label)
{
    tern__meeting_note(((tern__channel *)self)->meeting, label);
}

static const tern__tally *channel_tally(void *self, uint64_t seq)
{
    return &tern__meeting_work(((tern__channel *)self)->meeting, seq)->tally;
}

static void channel_close(void *self)
{
    tern__channel *channel = self;
    tern__meeting_close(channel->meeting);
    tern__free(channel->cuts);
    tern__free(channel->at);
    tern__free(channel->to);
    tern__free(channel);
}

static void *channel_open(void *state, const tern__channel_opts *opts, tern_error *err)
{
    static const tern__meeting_mover mover = {.begin = cut_work,
                                              .run = run_work,
                                              .is_done = work_is_done,
                                              .is_carried = work_is_carried,
                                              .owes = owes_chunk};
    const char *func = "tern_group";
    tern__window_state *windows = state;
    size_t world = (size_t)windows->ranks.world;
    tern__channel *channel = tern__alloc(sizeof(*channel), func, err);
    if (!channel) return NULL;
    channel->windows = windows;
    channel->at = tern__alloc(world * sizeof(*channel->at), func, err);
    channel->to = tern__alloc(world * sizeof(*channel->to), func, err);
    if (channel->at && channel->to)
        channel->meeting =
            tern__meeting_open(&windows->ranks, opts->slots, &mover, channel,
                               (world + 1) * sizeof(tern__word) + world * sizeof(tern__carried), err);
    if (channel->meeting)
        channel->cuts = tern__alloc(channel->meeting->slots * sizeof(*channel->cuts), func, err);
    if (channel->cuts) return channel;
    channel_close(channel);
    return NULL;
}

void tern__windows_close(void *state)
{
    tern__window_state *windows = state;
    tern__mailbox_close(windows->mailbox);
    for (uint32_t i = 0; i < windows->count; i++) tern__window_close(windows, i);
    tern__shm_close(&windows->ranks);
    tern__free(windows->list);
    tern__free(windows);
}

void *tern__windows_open(tern_group *group, tern_error *err)
{
    tern__window_state *windows = tern__alloc(sizeof(*windows), "tern_group_open", err);
    if (!windows) return NULL;
    if (tern__shm_open(&windows->ranks, group, err)) {
        tern__windows_close(windows);
        return NULL;
    }
    if (windows->ranks.spins) group->spins = &windows->ranks.spins;
    return windows;
}

const tern__comm_backend tern__comm_native = {
    .name = "native",
    .keeps_parts = true,
    .carries = sizeof(tern__carried),
    .open = tern__windows_open,
    .close = tern__windows_close,
    .window_open = tern__window_open,
    .window_at = tern__window_at,
    .window_close = tern__window_close,
    .window_commit = tern__window_commit,
    .channel_open = channel_open,
    .channel_close = channel_close,
    .post = channel_post,
    .test = channel_test,
    .wait = channel_wait,
    .tally = channel_tally,
    .note = channel_note,
    .transfer_start = tern__mailbox_start,
    .transfer_wait = tern__mailbox_wait,
    .transfer_drop = tern__mailbox_drop,
};
