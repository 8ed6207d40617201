/* amx_matmul.h - one product of bf16 matrices by the tile unit. */
#ifndef TERN_SRC_KERNELS_CPU_AMX_MATMUL_H
#define TERN_SRC_KERNELS_CPU_AMX_MATMUL_H

#include "kernels/cpu/matrix.h"

/* y is bf16 or f32. */
tern__matrix_product tern__amx_matmul;

#endif
