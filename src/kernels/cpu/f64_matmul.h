/* f64_matmul.h - an f64 matrix product, which oneDNN does not have. */
#ifndef TERN_SRC_KERNELS_CPU_F64_MATMUL_H
#define TERN_SRC_KERNELS_CPU_F64_MATMUL_H

#include "kernels/cpu/matrix.h"

tern__matrix_product tern__f64_matmul;

#endif
