/* planes.h - 16 lines or planes side by side in f32, and apart again, for kernels that go along all of them
 * at once. */
#ifndef TERN_SRC_KERNELS_CPU_PLANES_H
#define TERN_SRC_KERNELS_CPU_PLANES_H

#include "tensor/view.h"

/* to[16 i + l] = from[l step + i] for i < n; in lanes that there are not, l = 0. */
void tern__lines_join(float *to, const float *from, int64_t step, int64_t n, int lanes);
/* The way back: to[l step + i] = or += from[16 i + l] for l < lanes. */
void tern__lines_part(float *to, const float *from, int64_t step, int64_t n, int lanes, bool add);

/* Planes `plane` to plane + lanes - 1, of `size` elements each, of a plain f32 tensor; or of a blocked one of
 * 16 bits, whose planes stand side by side already: `plane` is the first of 16. */
typedef struct tern__planes {
    const tern__view *view;
    int64_t plane, size;
    int lanes;
} tern__planes;

/* Their elements first to first + n - 1, side by side. */
void tern__planes_join(float *to, const tern__planes *from, int64_t first, int64_t n);
/* The way back; or added to what is there. */
void tern__planes_part(const tern__planes *to, const float *from, int64_t first, int64_t n, bool add);
/* The same for bytes. */
void tern__planes_part_bytes(const tern__planes *to, const uint8_t *from, int64_t first, int64_t n);

#endif
