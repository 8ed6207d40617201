/* transpose.h - copies whose input and output are contiguous along different dimensions. */
#ifndef TERN_SRC_KERNELS_CPU_TRANSPOSE_H
#define TERN_SRC_KERNELS_CPU_TRANSPOSE_H

#include "kernels/cpu/loops.h"
#include "kernels/plan.h"

/* Copies input 0 to output 0, which are operands `in` and `out` of the plan; false if it is no such copy. */
bool tern__transpose(const tern__call *call, const tern__plan *plan, int in, int out);

#endif
