/* cublas.h - the plug-in's interface to cuBLASLt. */
#ifndef TERN_SRC_CUDA_CUBLAS_CUBLAS_H
#define TERN_SRC_CUDA_CUBLAS_CUBLAS_H

#include "cuda/cublas/gemm.h"

/* E_UNSUPPORTED, with nothing computed: cuBLASLt has no algorithm. */
int tern__cublas_gemm(const tern__call *call, const tern__gemm *gemm);

/* "cuBLAS 13.1.2". */
void tern__cublas_version(char *text, size_t size);

#endif
