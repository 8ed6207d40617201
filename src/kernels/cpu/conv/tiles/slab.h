/* slab.h - what tiles/conv.c multiplies: copies of the source (x, or dy in a data gradient) in planes.
 *
 * A plane has the padding around it, so that a tap of the kernel sees the whole plane shifted. With a stride
 * of s, a forward deals the rows of x to s planes (phases), of which each tap sees one; a data gradient
 * computes the rows of dx in s turns, each with taps of its own. So positions are always neighbours. A volume
 * has sheets of rows, and its planes as many sheets; depth is an axis like the others, and an image a volume
 * of one sheet. Where it is larger than the cache, a slab is some of its sheets.
 *
 * A plane has 32 channels of a position side by side, a row of a tile; sums go over taps and channels. Where
 * there are 16 only, a plane has those, and a row of a tile is two neighbouring positions, for two taps. Of
 * small images some go together (a bunch): each position then has a place for each of them, side by side.
 *
 * f32 is copied in two parts (tern__lanes_split): planes of the higher and planes of the lower ones. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_SLAB_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_SLAB_H

#include "kernels/cpu/conv/tiles/planes.h"
#include "kernels/cpu/conv/tiles/unfold.h"

#define TERN__AMX_WIDE (2 * TERN__AMX_DEPTH) /* bytes of a row of a tile */

typedef struct tern__slabs {
    const tern__view *source;
    const tern__unfold *unfold; /* of the source; NULL: it is copied as it is */
    tern__tile_planes p;
    int64_t blocks;   /* of 32 channels                                     */
    int64_t wide;     /* bytes of a place: WIDE, or half of it              */
    int64_t together; /* images of a bunch                                  */
    int64_t deep;     /* sheets of results of a slab                        */
    int64_t each;     /* slabs of a bunch                                   */
    int64_t row;      /* bytes of a row of a plane                          */
    int64_t plane;    /* and of a plane                                     */
    int64_t low;      /* from a part to the lower one; 0: bf16 has only one */
    int64_t bytes;    /* of a slab                                          */
} tern__slabs;

/* Slab number n, to memory that was zero before its first one: padding that no slab writes stays so. */
void tern__slab_copy(const tern__slabs *s, int64_t n, char *planes);

#endif
