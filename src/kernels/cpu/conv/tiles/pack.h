/* pack.h - a convolution's weight in tiles, as tiles/conv.c reads it.
 *
 * Tiles of the same 16 columns (channels of the target) are stored together: for each block of 32 channels
 * of the source a tile for each tap. In f32 the tile of the high parts is followed by that of the low
 * parts. Channels that fill no tile are padded with zeros. After all tiles there is a byte for each 16
 * columns: whether they may have large floats (tern__lanes_large). */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_PACK_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_PACK_H

#include "kernels/kernel.h"

/* The weight seen as (columns, depth, taps). */
typedef struct tern__amx_weight {
    const tern__view *view;
    int64_t offset, end;                 /* range of its elements */
    int64_t columns, depth;              /* channels of the target, channels of the source */
    int64_t column_stride, depth_stride; /* in elements                              */
    int64_t taps;                        /* taps of the kernel */
    int64_t tile;                        /* bytes of a step: one tile, or two */
} tern__amx_weight;

/* turned: for a data gradient, with its channels swapped. unfolded: with a channel for every tap
 * (tiles/unfold.h). */
tern__amx_weight tern__amx_weight_of(const tern__view *w, int64_t offset, bool turned, bool unfolded);
size_t tern__amx_weight_bytes(const tern__amx_weight *w);
void tern__amx_pack(const tern__amx_weight *w, int threads, char *tiles);
/* The bytes after the tiles. */
const bool *tern__amx_weight_large(const tern__amx_weight *w, const void *tiles);

#endif
