/* matmul.h - the matrix product, for kernels that are built from products.
 *
 * In two dimensions tern__cuda_matmul (kernels.h) also takes a second output (m): the sums of a's rows. */
#ifndef TERN_SRC_CUDA_CUBLAS_MATMUL_H
#define TERN_SRC_CUDA_CUBLAS_MATMUL_H

#include "cuda/cublas/gemm.h"

bool tern__cuda_matmul_takes(const tern__call *call);

/* Returns the call as one product; false: cuBLASLt cannot take the operands as they are. */
bool tern__cuda_gemm_of(const tern__call *call, tern__gemm *g);

#endif
