/* widen.h - runs f32 kernels for bf16 and f16: operands are copied to f32 and results back; and f64's. */
#ifndef TERN_SRC_KERNELS_CPU_WIDEN_H
#define TERN_SRC_KERNELS_CPU_WIDEN_H

#include "kernels/cpu/cpu.h"

static inline bool tern__view_is_half(const tern__view *view)
{
    return tern__dtype_is_half(view->dtype);
}

/* Runs `kernel`, which takes f32, for a call with 16-bit operands; other operands are passed as they are. */
int tern__cpu_widened(const tern__call *call, tern__kernel_fn kernel);
/* Runs `kernel`, which takes f64, on copies of all operands. */
int tern__cpu_widened_to_f64(const tern__call *call, tern__kernel_fn kernel);

#endif
