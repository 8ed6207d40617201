/* slice.h - how the tiles of all sheets are cut into slices: some tiles of some sheets, a step apart. The
 * inputs of a slice are the same tiles of these sheets and of taps - 1 more; each is transformed once for
 * all outputs that use it. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_SLICE_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_SLICE_H

#include "kernels/cpu/conv/winograd/transform.h"

#define TERN__WINOGRAD_SHEETS 16 /* most sheets of a slice: 18 of the inputs for three taps */

typedef struct tern__winograd_cut {
    int64_t tiles, sheets; /* most tiles and sheets of a slice */
    int64_t runs;          /* slices of the same tiles */
    int64_t count;         /* number of slices */
} tern__winograd_cut;

typedef struct tern__winograd_slice {
    int64_t first, tiles;  /* tiles of each sheet */
    int64_t sheet, sheets; /* the first sheet, and how many */
} tern__winograd_slice;

/* The size of equal pieces of at most `most`. */
static inline int64_t tern__winograd_share(int64_t all, int64_t most)
{
    int64_t pieces = (all + most - 1) / most;
    return (all + pieces - 1) / pieces;
}

static inline int64_t tern__winograd_step(const tern__winograd_grid *g)
{
    return g->depth.step < 0 ? -g->depth.step : g->depth.step;
}

/* Cuts into slices of at most `most` tiles, or of one tile per sheet; `inputs`: count the inputs' tiles. */
static inline tern__winograd_cut tern__winograd_cut_of(const tern__winograd_grid *g, int64_t most,
                                                       bool inputs)
{
    int64_t step = tern__winograd_step(g), sheets = (g->depth.out + step - 1) / step;
    tern__winograd_cut c = {.sheets = tern__winograd_share(sheets, TERN__WINOGRAD_SHEETS)};
    int64_t tall = c.sheets + (inputs ? g->depth.taps - 1 : 0);
    c.tiles = tern__winograd_share(g->tiles, TERN__MAX(1, most / tall));
    c.runs = step * ((sheets + c.sheets - 1) / c.sheets);
    c.count = c.runs * ((g->tiles + c.tiles - 1) / c.tiles);
    return c;
}

static inline tern__winograd_slice tern__winograd_slice_of(const tern__winograd_grid *g,
                                                           const tern__winograd_cut *c, int64_t number)
{
    int64_t first = number / c->runs * c->tiles, run = number % c->runs, step = tern__winograd_step(g);
    int64_t sheet = run % step + run / step * c->sheets * step;
    int64_t left = TERN__MAX(0, g->depth.out - sheet + step - 1) / step;
    return (tern__winograd_slice){first, TERN__MIN(c->tiles, g->tiles - first), sheet,
                                  TERN__MIN(c->sheets, left)};
}

/* The sheets of a slice's inputs. */
static inline int64_t tern__winograd_tall(const tern__winograd_grid *g, int64_t sheets)
{
    return sheets + g->depth.taps - 1;
}

/* The inputs' sheet that a tap reads for the first output. */
static inline int64_t tern__winograd_seen(const tern__winograd_grid *g, int64_t tap)
{
    return g->depth.step < 0 ? g->depth.taps - 1 - tap : tap;
}

/* The tiles of sheet i of the outputs, and of sheet i of the inputs. */
static inline tern__winograd_part
tern__winograd_out_part(const tern__winograd_grid *g, const tern__winograd_slice *s, int64_t block, int64_t i)
{
    return (tern__winograd_part){block, s->sheet + i * tern__winograd_step(g), s->first, s->tiles};
}

static inline tern__winograd_part
tern__winograd_in_part(const tern__winograd_grid *g, const tern__winograd_slice *s, int64_t block, int64_t i)
{
    tern__winograd_part part = tern__winograd_out_part(g, s, block, i - tern__winograd_seen(g, 0));
    part.sheet += g->depth.shift;
    return part;
}

#endif
