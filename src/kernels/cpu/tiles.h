/* tiles.h - a dense tensor (N, C, ..) cut into tiles that fit the cache, for sums over each channel.
 *
 * A tile has at most TERN__TILE rows of 16 lanes and is one piece of memory. In the blocked layout a row is
 * the 16 channels of a block at one position. A plain (N, C) has one row per sample and up to 16 channels. A
 * plain (N, C, positions..) has its lanes over 16 neighbouring positions of one channel, so what the lanes
 * hold is summed at the end, and what does not fill a row is a second, narrower strip. How a tensor is cut
 * does not depend on the number of threads. */
#ifndef TERN_SRC_KERNELS_CPU_TILES_H
#define TERN_SRC_KERNELS_CPU_TILES_H

#include "kernels/cpu/lanes.h"

#define TERN__TILE 512

typedef struct tern__tiling {
    int64_t batch, channels, positions;
    int64_t width;           /* channels of a tile: 16, or 1 in a plain layout with positions */
    int64_t groups;          /* of that many channels                                         */
    int64_t parts, per_part; /* a group's positions in one sample: parts of so many           */
    int64_t stride;          /* from one row to the next                                      */
    int64_t tiles;           /* that a channel is spread over                                 */
} tern__tiling;

/* rows of `lanes` floats, `stride` apart. */
typedef struct tern__strip {
    int64_t at, rows, stride;
    int lanes;
} tern__strip;

typedef struct tern__tile {
    tern__strip strips[2]; /* the second one is often empty, the first never */
    int64_t number;        /* among the tiles of its channels                */
    int64_t channel;       /* the first                                      */
    int channels;
    int64_t count; /* values of each channel */
} tern__tile;

tern__tiling tern__tiling_of(const tern__view *x);

/* Groups of channels from `first` to before `last`, and the threads that share their tiles. */
typedef struct tern__span {
    int64_t first, last;
    int threads;
} tern__span;

static inline int64_t tern__span_channel(const tern__tiling *s, const tern__span *span)
{
    return span->first * s->width;
}

/* How many channels from there on. */
static inline int64_t tern__span_channels(const tern__tiling *s, const tern__span *span)
{
    return TERN__MIN(span->last * s->width, s->channels) - tern__span_channel(s, span);
}

/* All groups. */
tern__span tern__span_all(const tern__call *call, const tern__tiling *tiling);

typedef void (*tern__span_fn)(const tern__span *span, void *ctx);
/* Covers all groups such that what fn goes through twice stays in the cache, if it can: one group at a time,
 * in each thread. Where that would leave threads without work, and where groups lie across each other's
 * lines, it is all of them at once. */
void tern__spans_each(const tern__call *call, const tern__tiling *tiling, tern__span_fn fn, void *ctx);

typedef void (*tern__tile_fn)(const tern__tile *t, void *ctx);
/* Every tile of the span, in the order of memory: each thread takes a run of them, or goes through its run
 * from the end. */
void tern__tiles_each(const tern__tiling *tiling, const tern__span *span, tern__tile_fn fn, void *ctx,
                      bool backwards);

#endif
