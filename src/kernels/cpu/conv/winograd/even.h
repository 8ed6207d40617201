/* even.h - where Winograd's algorithm may be used. An output of a tile is a sum of all of the tile's inputs,
 * of which those beyond its own 3x3 window cancel up to rounding. So an infinity or NaN spreads over the
 * tile, and the rounding of a value that is far above the rest may exceed a neighbour's whole sum. Tiles,
 * weights and channels without such values are called even. What depends on others is computed by the
 * definition (tern__winograd_direct, and sums over taps for the gradient of weights).
 *
 * Where all values are of one size, an error is about a hundredth of 1e-5 of sum |d g| over the window. So
 * it is enough that every window of a tile has 1/32 of the tile's sum of |d|, without its largest value, and
 * that no channel has nearly all of it. Computing that takes as long as a transform. So tiles are first
 * judged by two lines of sums of squares (transform.h), and only doubtful ones are looked at: every window
 * contains one of the four inputs in the middle of the tile, so if these have a share of the tile's energy,
 * all windows do. All channels count: after a ReLU a few of them are often all zeros at a place.
 *
 * Weights must have 1/256 of their squares in every tap, since at the border an output may see one tap only.
 * A gradient of weights sums a channel's values over all tiles, so one value's rounding is small beside the
 * others' products unless it dominates the channel: none may have more than an eighth of its sum of |x| or
 * |dy|. */
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
