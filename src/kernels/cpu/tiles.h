/* tiles.h - cuts a contiguous tensor (N, C, ..) into tiles that fit into the cache, for sums over each
 * channel.
 *
 * A tile has at most TERN__TILE rows of 16 lanes and is contiguous memory. In the blocked layout a row is
 * the 16 channels of a block at one position. A plain (N, C) has one row per sample and up to 16 channels.
 * A plain (N, C, positions..) has its lanes along 16 neighbouring positions of one channel: the lanes are
 * added at the end, and positions that do not fill a row form a second, narrower strip. Tiles do not
 * depend on the number of threads. */
#ifndef TERN_SRC_KERNELS_CPU_TILES_H
#define TERN_SRC_KERNELS_CPU_TILES_H

#include "kernels/cpu/lanes.h"

#define TERN__TILE 512

typedef struct tern__tiling {
    int64_t batch, channels, positions;
    int64_t width;           /* channels of a tile: 16, or 1 in a plain layout with positions */
    int64_t groups;          /* number of groups of that many channels */
    int64_t parts, per_part; /* a group's positions in one sample: parts, and positions per part */
    int64_t stride;          /* from one row to the next */
    int64_t tiles;           /* tiles of each channel */
} tern__tiling;

/* Rows of `lanes` floats, `stride` apart. */
typedef struct tern__strip {
    int64_t at, rows, stride;
    int lanes;
} tern__strip;

typedef struct tern__tile {
    tern__strip strips[2]; /* the second is often empty, the first never */
    int64_t number;        /* index among the tiles of its channels */
    int64_t channel;       /* first channel */
    int channels;
    int64_t count; /* values per channel */
} tern__tile;

tern__tiling tern__tiling_of(const tern__view *x);

/* Groups of channels first .. last - 1, and the threads that share their tiles. */
typedef struct tern__span {
    int64_t first, last;
    int threads;
} tern__span;

static inline int64_t tern__span_channel(const tern__tiling *s, const tern__span *span)
{
    return span->first * s->width;
}

/* The number of channels of the span. */
static inline int64_t tern__span_channels(const tern__tiling *s, const tern__span *span)
{
    return TERN__MIN(span->last * s->width, s->channels) - tern__span_channel(s, span);
}

/* The span of all groups. */
tern__span tern__span_all(const tern__call *call, const tern__tiling *tiling);

typedef void (*tern__span_fn)(const tern__span *span, void *ctx);
/* Calls fn for spans that cover all groups. If possible the spans are such that data which fn reads twice
 * stay in the cache: one group at a time in each thread. If that would leave threads without work, or
 * groups share cache lines, it is one span with all groups. */
void tern__spans_each(const tern__call *call, const tern__tiling *tiling, tern__span_fn fn, void *ctx);

typedef void (*tern__tile_fn)(const tern__tile *t, void *ctx);
/* Calls fn for every tile of the span in memory order: each thread takes a run of tiles, or goes over its
 * run backwards. */
void tern__tiles_each(const tern__tiling *tiling, const tern__span *span, tern__tile_fn fn, void *ctx,
                      bool backwards);

#endif
