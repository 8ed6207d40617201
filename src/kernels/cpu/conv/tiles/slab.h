/* slab.h - copies of the source (x, or dy in a data gradient) in planes, the operands of tiles/conv.c.
 *
 * A plane includes the padding, so that each tap of the kernel reads the whole plane shifted. With a
 * stride of s a forward distributes the source's rows to s planes (phases), of which each tap reads one; a
 * data gradient computes the rows of dx in s turns, each with its own taps. So the positions read are
 * always adjacent. A volume has sheets of rows, and its planes have as many sheets: depth is an axis like
 * the others, and an image is a volume of one sheet. If a volume is larger than the cache, a slab is some
 * of its sheets.
 *
 * A plane has 32 channels of a position side by side, a row of a tile; sums go over taps and channels. If
 * there are only 16 channels a plane has those, and a row of a tile is two neighbouring positions, for two
 * taps. Several small images form a bunch: each position then has a place for each of them, side by side.
 *
 * f32 is copied in two parts (tern__lanes_split): planes of the high parts and planes of the low ones. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_SLAB_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_SLAB_H

#include "kernels/cpu/conv/tiles/planes.h"
#include "kernels/cpu/conv/tiles/unfold.h"

#define TERN__AMX_WIDE (2 * TERN__AMX_DEPTH) /* bytes of a row of a tile */

typedef struct tern__slabs {
    const tern__view *source;
    const tern__unfold *unfold; /* unfolding of the source; NULL: copied as it is */
    tern__tile_planes p;
    int64_t blocks;   /* blocks of 32 channels */
    int64_t wide;     /* bytes of a place: TERN__AMX_WIDE or half of it */
    int64_t together; /* images of a bunch */
    int64_t deep;     /* sheets of results of a slab */
    int64_t each;     /* slabs of a bunch */
    int64_t row;      /* bytes of a row of a plane                          */
    int64_t plane;    /* bytes of a plane */
    int64_t low;      /* distance from the high part to the low one; 0: bf16 has one part */
    int64_t bytes;    /* bytes of a slab */
} tern__slabs;

/* Copies slab n to memory that was zero before the first slab: padding that no slab writes stays zero.
 * Returns whether it has large floats (tern__lanes_large). */
bool tern__slab_copy(const tern__slabs *s, int64_t n, char *planes);

#endif
