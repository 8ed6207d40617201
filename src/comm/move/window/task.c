/* task.c - cuts a work into chunks and runs a chunk.
 *
 * A work whose result stays in the windows is cut into one slice per rank, and each slice into chunks. Any
 * rank may do any chunk, for all ranks. A work whose result goes to a rank's own memory has one chunk per
 * rank, which only that rank does. */
#include "comm/move/window/native.h"

#include "comm/move/reduce.h"

#include <string.h>

enum {
    chunk_bytes = 64 << 10, /* of one rank's window, so that all ranks' data of a chunk fits in the cache */
    small_bytes = 8 << 10,  /* not worth cutting */
};

/* ---- cutting ---- */

static uint64_t slice_start(const tern__task *task, int rank)
{
    return TERN__MIN((uint64_t)rank * task->slice, task->count);
}

/* A rank that receives nothing has no chunk of its own. */
uint64_t tern__task_chunks(const tern__task *task, int rank)
{
    if (task->is_own && task->post.kind == TERN__GATHER) return rank == task->post.root;
    if (task->is_own && task->post.kind == TERN__SCATTER) return rank != task->post.root;
    if (task->is_own) return 1;
    uint64_t length = slice_start(task, rank + 1) - slice_start(task, rank);
    return (length + task->chunk - 1) / task->chunk;
}

/* Slices end on cache lines. A small work is one chunk. A huge work gets larger chunks, so that their number
 * fits the counter. */
void tern__task_cut(tern__task *task, const tern__post *post, uint64_t count, int world)
{
    uint64_t size = tern_dtype_bytes(post->dtype), line = TERN__LINE / size;
    uint64_t each = (count + (uint64_t)world - 1) / (uint64_t)world;
    *task = (tern__task){.post = *post, .count = count, .is_own = post->out || post->kept || post->takes};
    if (post->only_meets || count == 0) return;
    task->slice = tern__align_up(count * size <= small_bytes ? count : each, line);
    task->chunk = TERN__MAX(chunk_bytes / size, tern__align_up(count >> (TERN__TAG_BITS - 1), line));
    for (int rank = 0; rank < world; rank++) task->chunks += tern__task_chunks(task, rank);
}

/* ---- the means and other reductions ---- */

static void reduce(const tern__channel *channel, const tern__task *task, char *const *out, int outs,
                   uint64_t count)
{
    const tern__post *post = &task->post;
    const char *const *in = (const char *const *)channel->at;
    int world = channel->native->world;
    if (!task->is_weighted)
        tern__reduce(post->dtype, post->op, in, world, out, outs, count);
    else if (!task->is_moot)
        tern__reduce_weighted(post->dtype, task->tally.weight, task->tally.shares, in, world, out, outs,
                              count);
}

/* ---- for all ranks, in the windows ---- */

static void copy_from(char *const *at, int world, int source, size_t bytes)
{
    for (int rank = 0; rank < world; rank++)
        if (rank != source) memcpy(at[rank], at[source], bytes);
}

/* Computes the elements [first, first + count), part by part. A part of an all_gather is copied from its rank
 * to the other ranks; a part of a reduce_scatter is reduced for its rank. */
static void run_parts(const tern__channel *channel, const tern__task *task, uint64_t first, uint64_t count)
{
    int world = channel->native->world;
    char **at = channel->at;
    uint64_t size = tern_dtype_bytes(task->post.dtype), each = task->count / (uint64_t)world;
    while (count) {
        uint64_t owner = first / each, here = TERN__MIN(count, (owner + 1) * each - first);
        if (task->post.kind == TERN__ALL_GATHER)
            copy_from(at, world, (int)owner, here * size);
        else
            reduce(channel, task, &at[owner], 1, here);
        for (int rank = 0; rank < world; rank++) at[rank] += here * size;
        first += here;
        count -= here;
    }
}

static void run_shared(const tern__channel *channel, const tern__task *task, uint64_t first, uint64_t count)
{
    int world = channel->native->world;
    switch (task->post.kind) {
    case TERN__ALL_REDUCE: reduce(channel, task, channel->at, world, count); break;
    case TERN__BROADCAST:
        if (task->source >= 0)
            copy_from(channel->at, world, task->source, count * tern_dtype_bytes(task->post.dtype));
        break;
    case TERN__ALL_GATHER:
    case TERN__REDUCE_SCATTER: run_parts(channel, task, first, count); break;
    case TERN__REDUCE: reduce(channel, task, &channel->at[task->post.root], 1, count); break;
    default: break;
    }
}

/* ---- for this rank, to `out` ---- */

/* Copies elements [first, first + count) of an all_gather to `out`. */
static void collect(const tern__task *task, char *const *at, int world, uint64_t first, uint64_t count)
{
    uint64_t size = tern_dtype_bytes(task->post.dtype), each = task->count / (uint64_t)world;
    char *out = task->post.out;
    for (uint64_t done = 0, here; done < count; done += here) {
        uint64_t owner = (first + done) / each, within = (first + done) % each;
        here = TERN__MIN(count - done, each - within);
        char *to = out + (owner * task->post.stride + within) * size, *from = at[owner] + done * size;
        if (to != from) memcpy(to, from, here * size);
    }
}

static uint64_t own_part(const tern__task *task, const tern__native *native)
{
    return (uint64_t)native->rank * (task->count / (uint64_t)native->world);
}

/* Reduces this rank's part of an all_reduce, whose data it has at `kept`; all ranks get the result. */
static void run_kept(const tern__channel *channel, const tern__task *task, uint64_t first, uint64_t count)
{
    const tern__native *native = channel->native;
    char **at = channel->at, **to = channel->to;
    at[native->rank] = task->post.kept + first * tern_dtype_bytes(task->post.dtype);
    for (int i = 0; i < native->world; i++) to[i] = at[(native->rank + i) % native->world];
    reduce(channel, task, to, native->world, count);
}

static void run_own(const tern__channel *channel, const tern__task *task, uint64_t first, uint64_t count)
{
    const tern__native *native = channel->native;
    uint64_t size = tern_dtype_bytes(task->post.dtype);
    char *out = task->post.out;
    switch (task->post.kind) {
    case TERN__ALL_REDUCE: run_kept(channel, task, first, count); break;
    case TERN__REDUCE_SCATTER:
        out += (first - own_part(task, native)) * size;
        reduce(channel, task, &out, 1, count);
        break;
    case TERN__BROADCAST:
        if (task->source >= 0 && native->rank != task->source)
            memcpy(out + first * size, channel->at[task->source], count * size);
        break;
    case TERN__ALL_GATHER: collect(task, channel->at, native->world, first, count); break;
    default: break;
    }
}

static void run_moves(const tern__channel *channel, const tern__task *task)
{
    const tern__native *native = channel->native;
    const tern__extent *e = task->post.extents;
    size_t size = tern_dtype_bytes(task->post.dtype);
    for (int i = 1; i < native->world; i++) {
        int rank = (native->rank + i) % native->world;
        const tern__move *take = &task->post.takes[rank];
        if (take->count)
            memcpy(take->to, native->windows[e->window]->bases[rank] + e->offset + take->from * size,
                   take->count * size);
    }
}

/* ---- extents ---- */

/* Computes `count` contiguous elements, starting with the work's element `first`, at byte `offset` of the
 * window. */
static void run_piece(tern__channel *channel, const tern__task *task, uint32_t window, uint64_t offset,
                      uint64_t first, uint64_t count)
{
    const tern__native *native = channel->native;
    for (int rank = 0; rank < native->world; rank++)
        channel->at[rank] = native->windows[window]->bases[rank] + offset;
    if (task->is_own)
        run_own(channel, task, first, count);
    else
        run_shared(channel, task, first, count);
}

/* Computes the elements in [low, high). The work's elements 0..count are its extents, one after the other. */
static void run_range(tern__channel *channel, const tern__task *task, uint64_t low, uint64_t high)
{
    uint64_t start = 0, size = tern_dtype_bytes(task->post.dtype);
    for (int i = 0; i < task->post.extent_count && start < high; i++) {
        const tern__extent *e = &task->post.extents[i];
        uint64_t from = TERN__MAX(low, start), to = TERN__MIN(high, start + e->count);
        if (from < to)
            run_piece(channel, task, e->window, e->offset + (from - start) * size, from, to - from);
        start += e->count;
    }
}

/* Does this rank's own chunk: what a move brings it, its part of a reduce_scatter or of a kept all_reduce, or
 * all elements of any other work. */
static void run_for_self(tern__channel *channel, const tern__task *task)
{
    const tern__post *post = &task->post;
    int rank = channel->native->rank, world = channel->native->world;
    uint64_t start = own_part(task, channel->native), part = task->count / (uint64_t)channel->native->world;
    if (post->kept)
        run_range(channel, task, tern__kept_start(task->count, post->dtype, world, rank),
                  tern__kept_start(task->count, post->dtype, world, rank + 1));
    else if (tern__kind_is_move(task->post.kind))
        run_moves(channel, task);
    else if (task->post.kind == TERN__REDUCE_SCATTER)
        run_range(channel, task, start, start + part);
    else
        run_range(channel, task, 0, task->count);
}

void tern__task_run(tern__channel *channel, const tern__task *task, int owner, uint64_t chunk)
{
    uint64_t low = slice_start(task, owner) + chunk * task->chunk, high = slice_start(task, owner + 1);
    if (task->is_own)
        run_for_self(channel, task);
    else
        run_range(channel, task, low, TERN__MIN(low + task->chunk, high));
}
