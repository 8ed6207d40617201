/* attention_tiles.h - the vector loops of attention (attention.c): what one thread computes without others. */
#ifndef TERN_SRC_KERNELS_CPU_ATTENTION_TILES_H
#define TERN_SRC_KERNELS_CPU_ATTENTION_TILES_H

#include "kernels/attention.h"
#include "kernels/cpu/widths.h"

/* Queries that are taken at a time, and keys. */
#define TERN__ATTENTION_QUERIES 96
#define TERN__ATTENTION_KEYS    64

typedef struct tern__attention {
    const tern__call *call;
    const tern__attention_attr *attr;
    const tern__view *q, *k, *v, *mask;
    tern__attention_shape n;
    int64_t blocks; /* of queries in a head */
    void *dmask;    /* sums of the mask's gradient, one for each of its elements; NULL: not wanted */
} tern__attention;

/* Scratch memory is of the type in which is computed: f64, or f32 for all others. */
typedef struct tern__attention_fns {
    /* The result for a block of queries, number (b H + h) blocks + block. */
    int64_t (*forward_room)(const tern__attention *a); /* numbers of scratch memory */
    void (*forward)(const tern__attention *a, int64_t block, void *room);
    /* All gradients of a head of k and v, number b H_k + h. */
    int64_t (*backward_room)(const tern__attention *a);
    void (*backward)(const tern__attention *a, int64_t head, void *room);
} tern__attention_fns;

TERN__DECLARE_WIDTHS(tern__attention_fns, tern__attention_f32);
TERN__DECLARE_WIDTHS(tern__attention_fns, tern__attention_f64);

#endif
