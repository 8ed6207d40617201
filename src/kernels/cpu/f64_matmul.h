/* f64_matmul.h - one product of f64 matrices, which oneDNN has none for. */
#ifndef TERN_SRC_KERNELS_CPU_F64_MATMUL_H
#define TERN_SRC_KERNELS_CPU_F64_MATMUL_H

#include "kernels/cpu/matrix.h"

tern__matrix_product tern__f64_matmul;

#endif
