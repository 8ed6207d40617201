/* lines.h - how a loop goes over the lines of a tensor: in tiles that stay in the cache.
 *
 * Lines along the last dimension are rows, one after the other; a tile is some whole rows, at least one.
 * Along another dimension neighbouring lines have adjacent elements; a tile is some of these lines. */
#ifndef TERN_SRC_KERNELS_CPU_LINES_H
#define TERN_SRC_KERNELS_CPU_LINES_H

#include "kernels/lines.h"

#define TERN__TILE_LINES    256  /* most lines of a tile */
#define TERN__TILE_ELEMENTS 1024 /* most elements of a tile of several rows */

typedef struct tern__line_tiles {
    bool rows;
    int64_t size, step;    /* elements of a line, and their distance */
    int64_t beside, apart; /* adjacent lines; distance between their first elements */
    int64_t width, parts;  /* lines of a tile; tiles for the adjacent lines */
    int64_t count;         /* number of all tiles */
} tern__line_tiles;

typedef struct tern__line_tile {
    int64_t at, line; /* offset of the first line's first element, and the line's index */
    int64_t lines;
} tern__line_tile;

static inline tern__line_tiles tern__line_tiles_of(const tern__lines *lines)
{
    tern__line_tiles t = {.rows = lines->inner == 1, .size = lines->size, .step = lines->inner};
    t.beside = t.rows ? lines->outer : lines->inner;
    t.apart = t.rows ? t.size : 1;
    t.width = t.rows ? TERN__TILE_ELEMENTS / TERN__MAX(t.size, 1) : TERN__TILE_LINES;
    t.width = TERN__MIN(TERN__MAX(t.width, 1), TERN__TILE_LINES);
    t.parts = (t.beside + t.width - 1) / t.width;
    t.count = t.parts * (t.rows ? 1 : lines->outer);
    return t;
}

static inline tern__line_tile tern__line_tile_at(const tern__line_tiles *t, int64_t number)
{
    int64_t block = number / t->parts, first = number % t->parts * t->width;
    return (tern__line_tile){block * t->size * t->beside + first * t->apart, block * t->beside + first,
                             TERN__MIN(t->width, t->beside - first)};
}

#endif
