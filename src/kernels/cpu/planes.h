/* planes.h - interleaves 16 lines or planes in f32 and separates them again, for kernels that go along all
 * of them at once. */
#ifndef TERN_SRC_KERNELS_CPU_PLANES_H
#define TERN_SRC_KERNELS_CPU_PLANES_H

#include "tensor/view.h"

/* to[16 i + l] = from[l step + i] for i < n; for missing lanes as for l = 0. */
void tern__lines_join(float *to, const float *from, int64_t step, int64_t n, int lanes);
/* The inverse: to[l step + i] = or += from[16 i + l] for l < lanes. */
void tern__lines_part(float *to, const float *from, int64_t step, int64_t n, int lanes, bool add);

/* Planes plane .. plane + lanes - 1, of `size` elements each, of a plain f32 tensor; or of a blocked
 * 16-bit tensor, whose planes are interleaved already: `plane` is the first of 16. */
typedef struct tern__planes {
    const tern__view *view;
    int64_t plane, size;
    int lanes;
} tern__planes;

/* Interleaves their elements first .. first + n - 1. */
void tern__planes_join(float *to, const tern__planes *from, int64_t first, int64_t n);
/* The inverse: stores or adds. */
void tern__planes_part(const tern__planes *to, const float *from, int64_t first, int64_t n, bool add);
/* The same for bytes. */
void tern__planes_part_bytes(const tern__planes *to, const uint8_t *from, int64_t first, int64_t n);

#endif
