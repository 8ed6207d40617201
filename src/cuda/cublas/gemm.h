/* gemm.h - products of matrices as those take them who make them: cuBLASLt (cublas.h), and a kernel of our
 * own for small ones (small_gemm.h). */
#ifndef TERN_SRC_CUDA_CUBLAS_GEMM_H
#define TERN_SRC_CUDA_CUBLAS_GEMM_H

#include "cuda/runtime.h"

/* Matrices by rows or, transposed, by columns, each `step` elements behind the last; a batch of them is
 * `next` elements apart. */
typedef struct tern__gemm_operand {
    void *data;
    tern_dtype dtype;
    bool transposed;
    int64_t step, next;
} tern__gemm_operand;

/* cuBLASLt is known to fail with longer batches, and to take vectors as if they began at multiples of so many
 * bytes, whatever its heuristics have seen. */
#define TERN__GEMM_BATCH  65535
#define TERN__GEMM_VECTOR 16

/* y (m, n) = or += a (m, k) b (k, n) + bias (n), `count` times, and then max(y, 0) if `relu`, where
 * cuBLASLt may make 0 of NaN. a and b are of one dtype, y is of that or f32, and not transposed; the bias is
 * of y's dtype, or NULL. Sums are made in f32, of f64 in f64. */
typedef struct tern__gemm {
    int64_t m, n, k, count; /* TERN__GEMM_BATCH at most */
    tern__gemm_operand a, b, y;
    const void *bias;     /* this and row_sums begin at multiples of TERN__GEMM_VECTOR bytes */
    const float *gate;    /* y counts as 0 where this, which stands as y does, is <= 0; only small_gemm.h's */
    void *row_sums;       /* of a's rows, (m) of y's dtype, of one matrix without a bias; or NULL */
    bool add, relu;       /* no ReLU with row_sums */
    int64_t alignment[3]; /* bytes, of all addresses at which a matrix of a, b or y begins */
} tern__gemm;

#endif
