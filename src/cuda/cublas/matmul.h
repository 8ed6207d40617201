/* matmul.h - the matrix product, for kernels that are made of some.
 *
 * Of two dimensions tern__cuda_matmul (kernels.h) also takes a second output (m): the sums of a's rows. */
#ifndef TERN_SRC_CUDA_CUBLAS_MATMUL_H
#define TERN_SRC_CUDA_CUBLAS_MATMUL_H

#include "cuda/cublas/gemm.h"

bool tern__cuda_matmul_takes(const tern__call *call);

/* The call's product; false: it is none of cuBLASLt's as it stands. */
bool tern__cuda_gemm_of(const tern__call *call, tern__gemm *g);

/* Of what comes second, and so cannot be declined: the first is done. */
static inline int tern__cuda_must(int status)
{
    return status == TERN_E_UNSUPPORTED ? TERN_E_SYSTEM : status;
}

#endif
