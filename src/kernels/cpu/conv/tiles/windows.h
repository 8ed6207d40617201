/* windows.h - results of tile products by the definition: sums in f32 over what their windows see. In
 * products of tiles, large floats have no exact parts (tern__lanes_large), and what is not finite meets the
 * zeros of the padding. Which results are computed so depends on the operands alone, not on how work is
 * divided. Each takes some fifty times as long as by tiles, but sums end once they are NaN. */
#ifndef TERN_SRC_KERNELS_CPU_CONV_TILES_WINDOWS_H
#define TERN_SRC_KERNELS_CPU_CONV_TILES_WINDOWS_H

#include "kernels/cpu/conv/tiles/pack.h"
#include "kernels/cpu/conv/tiles/target.h"

/* What the results of a convolution, or of its data gradient, see. */
typedef struct tern__windows {
    const tern__view *source, *w;
    int64_t offset;     /* of the weight's first element */
    tern__axis axis[3]; /* of the source itself, also where it is unfolded */
} tern__windows;

/* Replaces sums of a tile by those of the definition: `rows` places from `p` on and 16 columns from `column`
 * on. all: at all of its places; otherwise at those that see a large value. */
void tern__windows_sum(const tern__windows *windows, const tern__target *target, tern__place p, int rows,
                       int64_t column, bool all, float *sums);

/* Whether 16 columns of the weight from `column` on are finite. */
bool tern__windows_weight_is_finite(const tern__windows *windows, int64_t column);

/* The operands of a gradient of weights. */
typedef struct tern__weight_windows {
    const tern__view *x, *dy;
    const tern__axis *axis; /* from x to dy */
} tern__weight_windows;

/* A channel of x and a position in the kernel. */
typedef struct tern__window_tap {
    int64_t channel, at[3];
} tern__window_tap;

/* sums[o * 16 + i] = the gradient of channel `out` + o of dy at tap i, for 16 channels and up to 16 taps. */
void tern__windows_sum_weight(const tern__weight_windows *windows, const tern__window_tap *taps, int count,
                              int64_t out, float *sums);

#endif
