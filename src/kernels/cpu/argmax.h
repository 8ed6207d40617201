/* argmax.h - the choice that argmax makes, for kernels that go on with it. */
#ifndef TERN_SRC_KERNELS_CPU_ARGMAX_H
#define TERN_SRC_KERNELS_CPU_ARGMAX_H

#include "kernels/cpu/lines.h"

/* best[0..lines) = where the lines of a tile, whose first element is x, have their first largest (sign 1) or
 * smallest (-1) element; a NaN is both. Lines have less than 2^31 elements. */
void tern__cpu_best(const float *x, const tern__line_tiles *tiles, int64_t lines, float sign, int64_t *best);

#endif
