/* chunks.c - cuts a work into chunks and runs a chunk.
 *
 * A work whose result stays in the windows is cut into one slice per rank, and each slice into chunks. Any
 * rank may do any chunk, for all ranks. A work whose result goes to a rank's own memory has one chunk per
 * rank, which only that rank does. A work that fits a cache line is carried by the posts. */
#include "comm/move/window/window.h"

#include "comm/move/reduce.h"

#include <string.h>

enum {
    chunk_bytes = 64 << 10, /* of one rank's window, so that all ranks' data of a chunk fits in the cache */
    small_bytes = 8 << 10,  /* not worth cutting */
};

/* ---- cutting ---- */

/* True if the result goes to memory that only one rank sees: that rank must compute it. */
static bool cut_is_own(const tern__post *post)
{
    return post->out || post->kept || post->takes;
}

static uint64_t slice_start(const tern__cut *cut, uint64_t count, int rank)
{
    return TERN__MIN((uint64_t)rank * cut->slice, count);
}

/* A rank that receives nothing has no chunk of its own. */
uint64_t tern__cut_chunks(const tern__cut *cut, const tern__met *work, int rank)
{
    if (cut->is_own && work->post.kind == TERN__GATHER) return rank == work->post.root;
    if (cut->is_own && work->post.kind == TERN__SCATTER) return rank != work->post.root;
    if (cut->is_own) return 1;
    uint64_t length = slice_start(cut, work->count, rank + 1) - slice_start(cut, work->count, rank);
    return (length + cut->chunk - 1) / cut->chunk;
}

/* Slices end on cache lines. A small work is one chunk. A huge work gets larger chunks, so that their number
 * fits the counter. */
void tern__cut_make(tern__cut *cut, const tern__met *work, int world)
{
    const tern__post *post = &work->post;
    uint64_t count = work->count, size = tern_dtype_bytes(post->dtype), line = TERN__LINE / size;
    uint64_t each = (count + (uint64_t)world - 1) / (uint64_t)world;
    *cut = (tern__cut){.is_own = cut_is_own(post)};
    if (post->only_meets || count == 0) return;
    if (!cut->is_own && post->extent_count == 1 && count * size <= sizeof(tern__carried))
        cut->carried = count * size;
    if (cut->carried) return;
    cut->slice = tern__align_up(count * size <= small_bytes ? count : each, line);
    cut->chunk = TERN__MAX(chunk_bytes / size, tern__align_up(count >> (TERN__TAG_BITS - 1), line));
    for (int rank = 0; rank < world; rank++) cut->chunks += tern__cut_chunks(cut, work, rank);
}

/* ---- the means and other reductions ---- */

static void reduce_chunk(const tern__channel *channel, const tern__met *work, char *const *out, int outs,
                         uint64_t count)
{
    const tern__post *post = &work->post;
    const char *const *in = (const char *const *)channel->at;
    int world = channel->windows->ranks.world;
    if (!work->is_weighted)
        tern__reduce(post->dtype, post->op, in, world, out, outs, count);
    else if (!work->is_moot)
        tern__reduce_weighted(post->dtype, work->tally.weight, work->tally.shares, in, world, out, outs,
                              count);
}

/* ---- for this rank, from what the posts carry ---- */

static char *carried_place(const tern__channel *channel, const tern__met *work)
{
    const tern__window_state *windows = channel->windows;
    const tern__extent *own = work->post.extents;
    if (own->window == TERN__OWN_MEMORY) return (char *)(uintptr_t)own->offset;
    return windows->list[own->window]->bases[windows->ranks.rank] + own->offset;
}

void tern__carried_write(const tern__channel *channel, const tern__met *work, char *own, size_t bytes)
{
    memcpy(own, carried_place(channel, work), bytes);
}

void tern__carried_run(const tern__channel *channel, const tern__met *work, char *all, size_t bytes)
{
    const tern__post *post = &work->post;
    int rank = channel->windows->ranks.rank, world = channel->windows->ranks.world;
    size_t part = bytes / (size_t)world;
    char *to = carried_place(channel, work), **at = channel->at;
    for (int r = 0; r < world; r++) at[r] = all + r * TERN__LINE;
    switch (post->kind) {
    case TERN__REDUCE:
        if (rank != post->root) break;
        /* fall through */
    case TERN__ALL_REDUCE: reduce_chunk(channel, work, &to, 1, work->count); break;
    case TERN__BROADCAST:
        if (work->source >= 0) memcpy(to, at[work->source], bytes);
        break;
    case TERN__ALL_GATHER:
        for (int r = 0; r < world; r++) memcpy(to + (size_t)r * part, at[r] + (size_t)r * part, part);
        break;
    case TERN__REDUCE_SCATTER:
        for (int r = 0; r < world; r++) at[r] += (size_t)rank * part;
        to += (size_t)rank * part;
        reduce_chunk(channel, work, &to, 1, work->count / (uint64_t)world);
        break;
    default: break;
    }
}

/* ---- for all ranks, in the windows ---- */

static void copy_from(char *const *at, int world, int source, size_t bytes)
{
    for (int rank = 0; rank < world; rank++)
        if (rank != source) memcpy(at[rank], at[source], bytes);
}

/* Computes the elements [first, first + count), part by part. A part of an all_gather is copied from its rank
 * to the other ranks; a part of a reduce_scatter is reduced for its rank. */
static void run_parts(const tern__channel *channel, const tern__met *work, uint64_t first, uint64_t count)
{
    int world = channel->windows->ranks.world;
    char **at = channel->at;
    uint64_t size = tern_dtype_bytes(work->post.dtype), each = work->count / (uint64_t)world;
    while (count) {
        uint64_t owner = first / each, here = TERN__MIN(count, (owner + 1) * each - first);
        if (work->post.kind == TERN__ALL_GATHER)
            copy_from(at, world, (int)owner, here * size);
        else
            reduce_chunk(channel, work, &at[owner], 1, here);
        for (int rank = 0; rank < world; rank++) at[rank] += here * size;
        first += here;
        count -= here;
    }
}

static void run_shared(const tern__channel *channel, const tern__met *work, uint64_t first, uint64_t count)
{
    int world = channel->windows->ranks.world;
    switch (work->post.kind) {
    case TERN__ALL_REDUCE: reduce_chunk(channel, work, channel->at, world, count); break;
    case TERN__BROADCAST:
        if (work->source >= 0)
            copy_from(channel->at, world, work->source, count * tern_dtype_bytes(work->post.dtype));
        break;
    case TERN__ALL_GATHER:
    case TERN__REDUCE_SCATTER: run_parts(channel, work, first, count); break;
    case TERN__REDUCE: reduce_chunk(channel, work, &channel->at[work->post.root], 1, count); break;
    default: break;
    }
}

/* ---- for this rank, to `out` ---- */

/* Copies elements [first, first + count) of an all_gather to `out`. */
static void collect_inputs(const tern__met *work, char *const *at, int world, uint64_t first, uint64_t count)
{
    uint64_t size = tern_dtype_bytes(work->post.dtype), each = work->count / (uint64_t)world;
    char *out = work->post.out;
    for (uint64_t done = 0, here; done < count; done += here) {
        uint64_t owner = (first + done) / each, within = (first + done) % each;
        here = TERN__MIN(count - done, each - within);
        char *to = out + (owner * work->post.stride + within) * size, *from = at[owner] + done * size;
        if (to != from) memcpy(to, from, here * size);
    }
}

static uint64_t own_part(const tern__met *work, const tern__window_state *windows)
{
    return (uint64_t)windows->ranks.rank * (work->count / (uint64_t)windows->ranks.world);
}

/* Reduces this rank's part of an all_reduce, whose data it has at `kept`; all ranks get the result. */
static void run_kept(const tern__channel *channel, const tern__met *work, uint64_t first, uint64_t count)
{
    const tern__window_state *windows = channel->windows;
    char **at = channel->at, **to = channel->to;
    at[windows->ranks.rank] = work->post.kept + first * tern_dtype_bytes(work->post.dtype);
    for (int i = 0; i < windows->ranks.world; i++)
        to[i] = at[(windows->ranks.rank + i) % windows->ranks.world];
    reduce_chunk(channel, work, to, windows->ranks.world, count);
}

static void run_own(const tern__channel *channel, const tern__met *work, uint64_t first, uint64_t count)
{
    const tern__window_state *windows = channel->windows;
    uint64_t size = tern_dtype_bytes(work->post.dtype);
    char *out = work->post.out;
    switch (work->post.kind) {
    case TERN__ALL_REDUCE: run_kept(channel, work, first, count); break;
    case TERN__REDUCE_SCATTER:
        out += (first - own_part(work, windows)) * size;
        reduce_chunk(channel, work, &out, 1, count);
        break;
    case TERN__BROADCAST:
        if (work->source >= 0 && windows->ranks.rank != work->source)
            memcpy(out + first * size, channel->at[work->source], count * size);
        break;
    case TERN__ALL_GATHER: collect_inputs(work, channel->at, windows->ranks.world, first, count); break;
    default: break;
    }
}

/* Returns where byte `from` of an extent is in the memory of `rank`. */
static char *extent_at(const tern__channel *channel, const tern__met *work, const tern__extent *e, int rank,
                       uint64_t from)
{
    const tern__window_state *windows = channel->windows;
    const tern__desc *said = &channel->said[rank];
    if (!work->post.is_placed) return windows->list[e->window]->bases[rank] + e->offset + from;
    char *at = windows->list[said->window]->bases[rank] + said->place;
    if (!work->post.has_table) return at + from;
    const tern__extent *theirs = (const tern__extent *)at + (e - work->post.extents);
    return windows->list[theirs->window]->bases[rank] + theirs->offset + from;
}

static void run_moves(const tern__channel *channel, const tern__met *work)
{
    const tern__window_state *windows = channel->windows;
    size_t size = tern_dtype_bytes(work->post.dtype);
    for (int i = 1; i < windows->ranks.world; i++) {
        int rank = (windows->ranks.rank + i) % windows->ranks.world;
        const tern__move *take = &work->post.takes[rank];
        if (take->count)
            memcpy(take->to, extent_at(channel, work, work->post.extents, rank, take->from * size),
                   take->count * size);
    }
}

/* ---- extents ---- */

/* Computes `count` contiguous elements, starting with the work's element `first`, at byte `from` of the
 * extent. */
static void run_piece(tern__channel *channel, const tern__met *work, const tern__extent *e, uint64_t from,
                      uint64_t first, uint64_t count)
{
    for (int rank = 0; rank < channel->windows->ranks.world; rank++)
        channel->at[rank] = extent_at(channel, work, e, rank, from);
    if (cut_is_own(&work->post))
        run_own(channel, work, first, count);
    else
        run_shared(channel, work, first, count);
}

/* Computes the elements in [low, high). The work's elements 0..count are its extents, one after the other. */
static void run_range(tern__channel *channel, const tern__met *work, uint64_t low, uint64_t high)
{
    uint64_t start = 0, size = tern_dtype_bytes(work->post.dtype);
    for (int i = 0; i < work->post.extent_count && start < high; i++) {
        const tern__extent *e = &work->post.extents[i];
        uint64_t from = TERN__MAX(low, start), to = TERN__MIN(high, start + e->count);
        if (from < to) run_piece(channel, work, e, (from - start) * size, from, to - from);
        start += e->count;
    }
}

/* Does this rank's own chunk: what a move brings it, its part of a reduce_scatter or of a kept all_reduce, or
 * all elements of any other work. */
static void run_for_self(tern__channel *channel, const tern__met *work)
{
    const tern__post *post = &work->post;
    int rank = channel->windows->ranks.rank, world = channel->windows->ranks.world;
    uint64_t start = own_part(work, channel->windows),
             part = work->count / (uint64_t)channel->windows->ranks.world;
    if (post->kept)
        run_range(channel, work, tern__kept_start(work->count, post->dtype, world, rank),
                  tern__kept_start(work->count, post->dtype, world, rank + 1));
    else if (tern__kind_is_move(work->post.kind))
        run_moves(channel, work);
    else if (work->post.kind == TERN__REDUCE_SCATTER)
        run_range(channel, work, start, start + part);
    else
        run_range(channel, work, 0, work->count);
}

void tern__chunk_run(tern__channel *channel, uint64_t seq, int owner, uint64_t chunk)
{
    const tern__met *work = tern__meeting_work(channel->meeting, seq);
    const tern__cut *cut = tern__channel_cut(channel, seq);
    channel->said = tern__meeting_desc(channel->meeting, seq);
    if (cut_is_own(&work->post)) {
        run_for_self(channel, work);
        return;
    }
    uint64_t low = slice_start(cut, work->count, owner) + chunk * cut->chunk,
             high = slice_start(cut, work->count, owner + 1);
    run_range(channel, work, low, TERN__MIN(low + cut->chunk, high));
}
