/* tiles.c - cuts a tensor into tiles and calls a function for each. */
#include "kernels/cpu/tiles.h"

#include "kernels/cpu/loops.h"

#define PAGE_ROWS 64 /* floats; if a sample has less than a page, going to the next costs more */

tern__tiling tern__tiling_of(const tern__view *x)
{
    tern__tiling s = {.batch = x->shape[0], .channels = x->shape[1], .positions = 1};
    for (int d = 2; d < x->ndim; d++) s.positions *= x->shape[d];
    bool rows = s.positions == 1;
    if (rows) { /* (N, C): the samples are the positions */
        s.positions = s.batch;
        s.batch = 1;
    }
    bool blocked = x->layout == TERN__BLOCKED16 && !rows;
    s.width = blocked || rows ? TERN__BLOCK : 1;
    s.groups = (s.channels + s.width - 1) / s.width;
    s.stride = rows ? s.channels : TERN__BLOCK;
    int64_t most = s.width == 1 ? TERN__TILE * TERN__BLOCK : TERN__TILE;
    s.parts = (s.positions + most - 1) / most;
    s.per_part = (s.positions + s.parts - 1) / s.parts;
    if (s.width == 1) s.per_part = (s.per_part + TERN__BLOCK - 1) / TERN__BLOCK * TERN__BLOCK;
    s.parts = (s.positions + s.per_part - 1) / s.per_part;
    s.tiles = s.batch * s.parts;
    return s;
}

/* Returns tile i of the span in memory order: sample, group of channels, part. */
static tern__tile tile_of(const tern__tiling *s, const tern__span *span, int64_t i)
{
    int64_t groups = span->last - span->first;
    int64_t part = i % s->parts, group = span->first + i / s->parts % groups, n = i / s->parts / groups;
    int64_t first = part * s->per_part;
    tern__tile t = {.number = n * s->parts + part, .channel = group * s->width};
    t.channels = (int)TERN__MIN(s->width, s->channels - t.channel);
    t.count = TERN__MIN(s->per_part, s->positions - first);
    if (s->width == 1) {
        int64_t at = (n * s->channels + t.channel) * s->positions + first, rows = t.count / TERN__BLOCK;
        tern__strip whole = {at, rows, TERN__BLOCK, TERN__BLOCK},
                    rest = {at + rows * TERN__BLOCK, 1, TERN__BLOCK, (int)(t.count % TERN__BLOCK)};
        if (rest.lanes == 0) rest.rows = 0;
        t.strips[0] = rows ? whole : rest;
        if (rows) t.strips[1] = rest;
    } else {
        bool blocked = s->stride == TERN__BLOCK && s->channels % TERN__BLOCK == 0;
        int64_t at = blocked ? ((n * s->groups + group) * s->positions + first) * TERN__BLOCK
                             : first * s->stride + t.channel;
        t.strips[0] = (tern__strip){at, t.count, s->stride, t.channels};
    }
    return t;
}

static void run_part(const tern__tiling *s, const tern__span *span, tern__tile_fn fn, void *ctx,
                     bool backwards, int part)
{
    int64_t all = s->tiles * (span->last - span->first);
    int64_t first = all * part / span->threads, last = all * (part + 1) / span->threads;
    for (int64_t i = first; i < last; i++) {
        tern__tile t = tile_of(s, span, backwards ? last - 1 - (i - first) : i);
        fn(&t, ctx);
    }
}

void tern__tiles_each(const tern__tiling *s, const tern__span *span, tern__tile_fn fn, void *ctx,
                      bool backwards)
{
    int threads = span->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int p = 0; p < threads; p++) run_part(s, span, fn, ctx, backwards, p);
}

tern__span tern__span_all(const tern__call *call, const tern__tiling *s)
{
    return (tern__span){0, s->groups, tern__loop_threads(call, s->batch * s->channels * s->positions)};
}

void tern__spans_each(const tern__call *call, const tern__tiling *s, tern__span_fn fn, void *ctx)
{
    tern__span all = tern__span_all(call, s);
    int threads = all.threads;
    bool fair = s->groups % threads == 0 || s->groups >= 4 * threads;
    bool near = s->stride == TERN__BLOCK && s->positions * s->width >= TERN__BLOCK * PAGE_ROWS;
    if (!fair || !near) {
        fn(&all, ctx);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t g = 0; g < s->groups; g++) fn(&(tern__span){g, g + 1, 1}, ctx);
}
