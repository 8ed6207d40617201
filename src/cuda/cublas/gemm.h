/* gemm.h - a matrix product in the form that its two implementations take: cuBLASLt (cublas.h), and our
 * own kernel for small products (small_gemm.h). */
#ifndef TERN_SRC_CUDA_CUBLAS_GEMM_H
#define TERN_SRC_CUDA_CUBLAS_GEMM_H

#include "cuda/runtime.h"

/* A matrix by rows or, transposed, by columns, which are `step` elements apart; the matrices of a batch
 * are `next` elements apart. */
typedef struct tern__gemm_operand {
    void *data;
    tern_dtype dtype;
    bool transposed;
    int64_t step, next;
} tern__gemm_operand;

/* cuBLASLt is known to fail with longer batches, and to read vectors as if they were aligned to so many
 * bytes, whatever its heuristics were told. */
#define TERN__GEMM_BATCH  65535
#define TERN__GEMM_VECTOR 16

/* y (m, n) = or += a (m, k) b (k, n) + bias (n), `count` times, and then max(y, 0) if `relu`; cuBLASLt may
 * turn NaN into 0. a and b have one dtype; y has that dtype or f32 and is not transposed. The bias has y's
 * dtype, or is NULL. Sums are in f32, or in f64 for f64; cuBLASLt may round them to 16 bits before it adds y
 * or the bias. */
typedef struct tern__gemm {
    int64_t m, n, k, count; /* TERN__GEMM_BATCH at most */
    tern__gemm_operand a, b, y;
    const void *bias;     /* bias and row_sums are aligned to TERN__GEMM_VECTOR bytes */
    const float *gate;    /* y is 0 where the gate, stored like y, is <= 0; small_gemm.h only */
    void *row_sums;       /* sums of a's rows, (m) in y's dtype, of a single product without bias; or NULL */
    bool add, relu;       /* no ReLU with row_sums */
    int64_t alignment[3]; /* bytes; holds for every matrix of a, b or y */
} tern__gemm;

#endif
