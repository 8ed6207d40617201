/* staging.h - a short stretch of any view, whatever its dtype and stride, to and from an array of the type
 * that a loop computes in. */
#ifndef TERN_SRC_KERNELS_CPU_STAGING_H
#define TERN_SRC_KERNELS_CPU_STAGING_H

#include "tensor/view.h"

/* What is computed in: f32 for f32, bf16, f16; f64 if there is one, or if floating point meets i64 or i32;
 * i64 if all are integers. */
typedef enum tern__compute {
    TERN__COMPUTE_F32,
    TERN__COMPUTE_F64,
    TERN__COMPUTE_I64,
    TERN__COMPUTES
} tern__compute;

tern__compute tern__compute_of(const tern__view *const *views, int count);
/* The dtype that stands for it. */
tern_dtype tern__compute_dtype(tern__compute compute);

/* A loop takes so many elements at a time: all its arrays stay in the first-level cache. */
#define TERN__STAGE 256

typedef union tern__stage {
    float f32[TERN__STAGE];
    double f64[TERN__STAGE];
    int64_t i64[TERN__STAGE];
} __attribute__((aligned(64))) tern__stage;

/* stage[i] = the element at `at` + i * `stride` of memory of `dtype`. */
void tern__stage_load(tern__compute compute, tern__stage *stage, tern_dtype dtype, const void *data,
                      int64_t at, int64_t stride, int64_t count);
/* The way back; or added to what is there. */
void tern__stage_store(tern__compute compute, const tern__stage *stage, tern_dtype dtype, void *data,
                       int64_t at, int64_t stride, int64_t count, bool add);

#endif
