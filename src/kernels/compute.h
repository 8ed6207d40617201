/* compute.h - the type in which a kernel computes, from its operands' dtypes. */
#ifndef TERN_SRC_KERNELS_COMPUTE_H
#define TERN_SRC_KERNELS_COMPUTE_H

#include "tensor/view.h"

/* f32 for f32, bf16 and f16; f64 if an operand is f64, or if floating point meets i64 or i32; i64 if all
 * are integers. */
typedef enum tern__compute {
    TERN__COMPUTE_F32,
    TERN__COMPUTE_F64,
    TERN__COMPUTE_I64,
    TERN__COMPUTES
} tern__compute;

tern__compute tern__compute_of(const tern__view *const *views, int count);
/* Returns the corresponding dtype. */
tern_dtype tern__compute_dtype(tern__compute compute);

#endif
