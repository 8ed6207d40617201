/* halves.h - converts arrays of bf16 or f16 to f32 and back, outside of kernels. */
#ifndef TERN_SRC_KERNELS_HALVES_H
#define TERN_SRC_KERNELS_HALVES_H

#include "base/base.h"

void tern__halves_widen(tern_dtype dtype, float *to, const uint16_t *from, uint64_t count);
void tern__halves_narrow(tern_dtype dtype, uint16_t *to, const float *from, uint64_t count);

#endif
