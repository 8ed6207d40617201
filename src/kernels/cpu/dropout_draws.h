/* dropout_draws.h - the vector loops of dropout (dropout.c): drawing factors, and multiplying by them. */
#ifndef TERN_SRC_KERNELS_CPU_DROPOUT_DRAWS_H
#define TERN_SRC_KERNELS_CPU_DROPOUT_DRAWS_H

#include "kernels/cpu/widths.h"
#include "kernels/dropout.h"
#include "kernels/kernel.h"

/* Items that are drawn at a time. */
#define TERN__DROPOUT_CHUNK 128

/* Planes for dropping channels: a plane has one channel, or 16 in the blocked layout. */
typedef struct tern__dropout_planes {
    const tern__call *call;
    const float *factor; /* per channel of each sample */
    int64_t size;        /* elements of a plane */
    int width;           /* channels of a plane */
} tern__dropout_planes;

typedef struct tern__dropout_fns {
    /* Drops elements first .. last - 1; first is a multiple of a chunk. y may be x. */
    void (*drop)(const tern__call *call, int64_t first, int64_t last);
    /* Draws the factors of `chunks` chunks, from number `first` on. */
    void (*draw)(const tern__dropout_attr *a, int64_t first, int64_t chunks, float *to);
    /* Scales elements first .. last - 1 of planes; in the blocked layout first is a multiple of 16. */
    void (*scale)(const tern__dropout_planes *p, int64_t first, int64_t last);
} tern__dropout_fns;

TERN__DECLARE_WIDTHS(tern__dropout_fns, tern__dropout);

#endif
