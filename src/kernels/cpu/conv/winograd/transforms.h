/* transforms.h - the vector loops of the transforms (transform.h), for each vector width. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_TRANSFORMS_H
#define TERN_SRC_KERNELS_CPU_CONV_WINOGRAD_TRANSFORMS_H

#include "kernels/cpu/conv/winograd/transform.h"
#include "kernels/cpu/widths.h"

/* The loops for activations and their gradients: tern__winograd_inputs, _grads and _outputs. */
typedef struct tern__winograd_tiles {
    void (*inputs)(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                   const tern__winograd_part *part);
    void (*grads)(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *out,
                  const tern__winograd_part *part);
    void (*outputs)(tern__winograd_points from, const tern__winograd_grid *grid, const tern__view *out,
                    const void *bias, bool add, const tern__winograd_part *part, const bool *direct);
    /* Adds a block of inputs to the outputs of the tiles with direct[t]; taps: [input][tap][output]. */
    void (*add_direct)(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                       const tern__winograd_part *part, const float *taps, bool turned, const bool *direct);
    /* Whether the energies and centres of each of `count` tiles leave doubt that it is even. They are sums
     * over all blocks and over as many sheets as there are taps, which follow each other. */
    void (*find_doubtful)(bool *doubtful, tern__winograd_points from, int64_t blocks, int64_t block_pitch,
                          int64_t taps, int64_t count);
    /* Adds a block of inputs' |d| to the sums of tile t at its 36 positions; after these, the largest. */
    void (*add_sizes)(float *sums, const tern__winograd_grid *grid, const tern__view *in,
                      const tern__winograd_part *part, int64_t t);
    /* Adds lines to the sums of 16 channels at `to`, and keeps their maxima after these. */
    void (*add_lines)(float *to, const void *lines, tern_dtype dtype, int64_t count);
} tern__winograd_tiles;

TERN__DECLARE_WIDTHS(tern__winograd_tiles, tern__winograd_tiles);

#define TERN__WINOGRAD_SQUARE 9 /* taps of a sheet */

/* A sheet of the plain weights of 16 outputs and 16 inputs, in memory. All 9 taps of an output's inputs
 * are contiguous, or, turned, those of an input's outputs. */
typedef struct tern__winograd_channels {
    void *data;
    int64_t first, out_stride, in_stride;
} tern__winograd_channels;

/* The loops for such a square of channels. `energy`: sums of squares, [tap][output] with 32 outputs, to
 * which pack adds. load: [input][tap][output] in f32. */
typedef struct tern__winograd_squares {
    void (*pack)(float *to, int64_t pitch, int64_t width, tern__winograd_channels c, bool turned,
                 float *energy, tern_dtype dtype);
    void (*load)(float *taps, tern__winograd_channels c, bool turned, tern_dtype dtype);
    void (*unpack)(const float *from, int64_t pitch, int64_t width, tern__winograd_channels c, bool add,
                   tern_dtype dtype);
} tern__winograd_squares;

TERN__DECLARE_WIDTHS(tern__winograd_squares, tern__winograd_squares);

#endif
