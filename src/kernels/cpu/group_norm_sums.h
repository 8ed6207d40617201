/* group_norm_sums.h - the sums over rows for group norm (group_norm.c). */
#ifndef TERN_SRC_KERNELS_CPU_GROUP_NORM_SUMS_H
#define TERN_SRC_KERNELS_CPU_GROUP_NORM_SUMS_H

#include "kernels/cpu/widths.h"
#include "kernels/kernel.h"

/* The most values that are summed in f32; the rest is summed in double. */
#define TERN__GROUP_CHUNK 1024

/* A row's numbers: xhat = (x - centre) inverse + rest. */
typedef struct tern__group_unit {
    float centre, inverse, rest;
} tern__group_unit;

/* A row in backward, with n channels of one position; w may be NULL. */
typedef struct tern__group_row {
    const float *dy, *x, *w;
    int64_t n;
    tern__group_unit unit;
} tern__group_row;

typedef struct tern__group_sums_fns {
    /* The mean of a chunk of at most TERN__GROUP_CHUNK values, and the sum of squared distances from it. */
    void (*moments)(const float *x, int64_t n, double *mean, double *m2);
    /* The sum of the squares of such a chunk. */
    double (*squares)(const float *x, int64_t n);
    /* sum(d) and sum(d xhat); every channel's part is added to dw and, unless it is NULL, to db. */
    void (*channels)(const tern__group_row *row, float *dw, float *db, double result[2]);
    /* One channel of n positions: sum(dy) and sum(dy (x - centre)). */
    void (*positions)(const float *dy, const float *x, int64_t n, float centre, double result[2]);
} tern__group_sums_fns;

TERN__DECLARE_WIDTHS(tern__group_sums_fns, tern__group_sums);

#endif
