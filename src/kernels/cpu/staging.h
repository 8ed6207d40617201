/* staging.h - copies a short stretch of any view, whatever its dtype and stride, to and from an array of
 * the type in which a loop computes. */
#ifndef TERN_SRC_KERNELS_CPU_STAGING_H
#define TERN_SRC_KERNELS_CPU_STAGING_H

#include "kernels/compute.h"

/* Elements that a loop takes at a time: all its arrays stay in the first-level cache. */
#define TERN__STAGE 256

typedef union tern__stage {
    float f32[TERN__STAGE];
    double f64[TERN__STAGE];
    int64_t i64[TERN__STAGE];
} __attribute__((aligned(64))) tern__stage;

/* stage[i] = the element at `at` + i * `stride` of memory of `dtype`. */
void tern__stage_load(tern__compute compute, tern__stage *stage, tern_dtype dtype, const void *data,
                      int64_t at, int64_t stride, int64_t count);
/* The inverse: stores or adds. */
void tern__stage_store(tern__compute compute, const tern__stage *stage, tern_dtype dtype, void *data,
                       int64_t at, int64_t stride, int64_t count, bool add);

#endif
