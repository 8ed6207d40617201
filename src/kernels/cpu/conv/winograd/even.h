/* even.h - where Winograd's algorithm may be used. An output of a tile is a sum of all of the tile's inputs,
 * in which those beyond its own 3x3 window cancel up to rounding. So an infinity or NaN spreads over the
 * tile, and the rounding of a value that is far above the rest of the tile may exceed a neighbour's whole
 * sum. Tiles, weights and channels without such values are called even; what depends on others is computed
 * by the definition (tern__winograd_direct, and taps.c for gradients of weights).
 *
 * Rounding is relative to the largest inputs and allows an error of 1e-5 of sum |d g| over a window with a
 * margin of about a hundred if all are of one size. So it is enough that every window of a tile has 1/32 of
 * the tile's sum of |d|. That would take as long to compute as a transform. Therefore tiles are first seen
 * through two lines of sums (transform.h): each of a tile's windows contains one of the four inputs in its
 * middle, so if a few channels of these four have their share of the tile's energy, all windows do.
 *
 * A weight's taps are inputs of nothing else, but at the border an output sees one tap alone. So the squares of
 * every tap must have 1/256 of all taps'. In a gradient of weights a channel's values are summed over all
 * tiles; there no value may have more than a quarter of the sum of |x| or |dy| over its channel. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_EVEN_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_EVEN_H

#include "kernels/cpu/conv/winograd/transform.h"

/* Sets uneven[t] for the tiles of a sheet of the outputs (`part`; its block does not matter), and returns how
 * many are. `from`: the inputs' first tile of the first sheet that these outputs see; blocks of channels are
 * block_pitch floats apart. */
int64_t tern__winograd_find_uneven(bool *uneven, tern__winograd_points from, int64_t block_pitch,
                                   const tern__winograd_grid *grid, const tern__view *in,
                                   const tern__winograd_part *part);

/* Whether `width` outputs' weights are, by their sums of squares over the inputs, [tap][output]. */
bool tern__winograd_weights_are_even(float energy[][2 * TERN__BLOCK], int64_t width);

#define TERN__WINOGRAD_TOTALS (2 * TERN__BLOCK) /* floats that sum up a block's tiles */

/* Adds the energies of `count` tiles of a block. */
void tern__winograd_add_energy(float *totals, const float *energy, int64_t count);
/* Whether all channels of x or dy are, by the totals of all tiles. */
bool tern__winograd_channels_are_even(const tern__view *view, const float *totals);

#endif
