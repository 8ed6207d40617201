/* pack.h - the weight of a convolution as tiles/conv.c reads it, in tiles.
 *
 * Tiles of 16 columns (channels of the target) stand together, for each block of 32 channels of the
 * source a tile for each tap. An f32's tile of higher
 * parts is followed by that of the lower ones. Where channels fill no tile there are zeros. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_PACK_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_PACK_H

#include "kernels/kernel.h"

/* How the weight is seen: (columns, depth, taps). */
typedef struct tern__amx_weight {
    const tern__view *view;
    int64_t offset, end;                 /* its elements are from there to there     */
    int64_t columns, depth;              /* channels of the target, of the source    */
    int64_t column_stride, depth_stride; /* in elements                              */
    int64_t taps;                        /* of the kernel                            */
    int64_t tile;                        /* bytes of a step: one tile, or two        */
} tern__amx_weight;

/* In a data gradient it is turned, with its channels in each other's places; where x is unfolded
 * (tiles/unfold.h) it has a channel for every tap. */
tern__amx_weight tern__amx_weight_of(const tern__view *w, int64_t offset, bool turned, bool unfolded);
size_t tern__amx_weight_bytes(const tern__amx_weight *w);
void tern__amx_pack(const tern__amx_weight *w, int threads, char *tiles);

#endif
