/* triangle.h - the attributes of TRIANGLE: of each matrix in the last two dimensions, element (i, j) stays if
 * j - i <= diagonal, or >= if upper; the others become 0. */
#ifndef TERN_SRC_KERNELS_TRIANGLE_H
#define TERN_SRC_KERNELS_TRIANGLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tern__triangle_attr {
    int64_t diagonal, upper;
} tern__triangle_attr;

/* The columns that stay in row i: from first up to, but not including, last. */
static inline void tern__triangle_columns(const tern__triangle_attr *a, int64_t i, int64_t columns,
                                          int64_t *first, int64_t *last)
{
    int64_t edge = a->upper ? i + a->diagonal : i + a->diagonal + 1;
    edge = edge < 0 ? 0 : edge > columns ? columns : edge;
    *first = a->upper ? edge : 0;
    *last = a->upper ? columns : edge;
}

#endif
