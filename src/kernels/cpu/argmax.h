/* argmax.h - the index that argmax finds, for other kernels. */
#ifndef TERN_SRC_KERNELS_CPU_ARGMAX_H
#define TERN_SRC_KERNELS_CPU_ARGMAX_H

#include "kernels/cpu/lines.h"

/* best[0..lines) = the index of the first largest (sign 1) or smallest (-1) element in each line of a tile
 * whose first element is x; NaN counts as either. Lines have less than 2^31 elements. */
void tern__cpu_best(const float *x, const tern__line_tiles *tiles, int64_t lines, float sign, int64_t *best);

#endif
