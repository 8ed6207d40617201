/* strips.h - activations copied into tiles for sums over positions, 32 of them a tile.
 *
 * An image is cut into slabs of some sheets and rows of y's positions. The slabs of a group stand side by
 * side, so that their rows become one long row, and that is cut into strips of 32 columns: down a strip there
 * is a tile for every row. Small images fill tiles as large ones do. What a tap of the kernel sees a row
 * further down is the next tile; for what it sees to the side x is copied for each column of the kernel, and
 * where rows have a stride for each phase of it. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_STRIPS_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_STRIPS_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/planes.h"

/* How y is cut: `size` sheets and rows are a slab, `count` times as many (or less) an image. */
typedef struct tern__strip_slabs {
    int64_t size[2], count[2], width;
} tern__strip_slabs;

/* The slabs of a group: `count` from number `first` on. */
typedef struct tern__slab_range {
    int64_t first, count;
} tern__slab_range;

/* An operand, and how it is copied. */
typedef struct tern__strips {
    const tern__view *view;
    const tern__strip_slabs *slabs;
    tern__axis axis[3];         /* what y's positions see of it */
    bool by_channel;            /* a tile's rows are 16 channels; otherwise they are pairs of positions */
    bool unfolded;              /* what a tap sees is a channel, in the order of a weight */
    int64_t channels, bytes;    /* bytes of a value */
    int64_t phases[2], rows[2]; /* of sheets and of rows; those of a strip */
    int64_t copies;             /* one for each phase and column of the kernel */
    int64_t tile;               /* bytes: of f32 the higher parts' tile, and then the lower parts' */
} tern__strips;

/* The input, as the positions of `y`, cut into `slabs`, see it. */
tern__strips tern__strips_of(const tern__conv_attr *attr, const tern__view *x, const tern__view *y,
                             const tern__view *w, const tern__strip_slabs *slabs);
/* For a plain x of few channels: with a channel for every tap there is one copy, and one tap. */
void tern__strips_unfold(tern__strips *s);

/* Tiles of a strip of 16 channels. */
static inline int64_t tern__strips_height(const tern__strips *s)
{
    return s->rows[0] * s->rows[1];
}

/* Where a tap of the kernel sees y's first row: which copy, which tile of its strips. */
void tern__strips_tap(const tern__strips *s, int64_t tap, int64_t *copy, int64_t *row);

/* Makes a strip's tiles of 16 channels, from `channel` on. */
void tern__strips_fill(const tern__strips *s, tern__slab_range range, int64_t channel, int64_t copy,
                       int64_t strip, char *tiles);

#endif
