/* strips.h - copies of activations in tiles for sums over positions, 32 of them per tile.
 *
 * An image is cut into slabs of some sheets and rows of y's positions. The slabs of a group are placed
 * side by side, so that their rows form one long row, which is cut into strips of 32 columns: a strip has
 * a tile for every row. So small images fill tiles as well as large ones. What a tap of the kernel reads
 * one row further down is the next tile. For what it reads to the side x is copied for each column of the
 * kernel, and with a stride for each phase of the rows. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_STRIPS_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_STRIPS_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/planes.h"

/* How y is cut: a slab has `size` sheets and rows, an image has at most `count` slabs along each. */
typedef struct tern__strip_slabs {
    int64_t size[2], count[2], width;
} tern__strip_slabs;

/* The slabs of a group: `count` from `first` on. */
typedef struct tern__slab_range {
    int64_t first, count;
} tern__slab_range;

/* An operand, and how it is copied. */
typedef struct tern__strips {
    const tern__view *view;
    const tern__strip_slabs *slabs;
    tern__axis axis[3];         /* how y's positions map to it */
    bool by_channel;            /* a tile's rows are 16 channels; otherwise pairs of positions */
    bool unfolded;              /* every tap is a channel, in the order of a weight */
    int64_t channels, bytes;    /* bytes of a value */
    int64_t phases[2], rows[2]; /* phases of sheets and rows; sheets and rows of a strip */
    int64_t copies;             /* one for each phase and column of the kernel */
    int64_t tile;               /* bytes; in f32 the tile of the high parts, then that of the low parts */
} tern__strips;

/* The input as read for the positions of `y`, cut into `slabs`. */
tern__strips tern__strips_of(const tern__conv_attr *attr, const tern__view *x, const tern__view *y,
                             const tern__view *w, const tern__strip_slabs *slabs);
/* For a plain x of few channels: with a channel for every tap there is one copy and one tap. */
void tern__strips_unfold(tern__strips *s);

/* The number of tiles of a strip of 16 channels. */
static inline int64_t tern__strips_height(const tern__strips *s)
{
    return s->rows[0] * s->rows[1];
}

/* What a tap reads for y's first row: the copy, and the tile of its strips. */
void tern__strips_tap(const tern__strips *s, int64_t tap, int64_t *copy, int64_t *row);

/* Fills a strip's tiles with 16 channels from `channel` on. Returns whether there is a large float among them
 * (tern__lanes_large). */
bool tern__strips_fill(const tern__strips *s, tern__slab_range range, int64_t channel, int64_t copy,
                       int64_t strip, char *tiles);

#endif
