/* attention_tiles.h - the vector loops of attention (attention.c): what one thread computes on its own. */
#ifndef TERN_SRC_KERNELS_CPU_ATTENTION_TILES_H
#define TERN_SRC_KERNELS_CPU_ATTENTION_TILES_H

#include "kernels/attention.h"
#include "kernels/cpu/widths.h"

/* Queries that are taken at a time, and keys. */
#define TERN__ATTENTION_QUERIES 96
#define TERN__ATTENTION_KEYS    128
#define TERN__ATTENTION_FEW     8 /* queries of a head that have a function of their own */

typedef struct tern__attention {
    const tern__call *call;
    const tern__attention_attr *attr;
    const tern__view *q, *k, *v, *mask;
    tern__attention_shape n;
    int64_t blocks; /* of queries in a head */
    int64_t parts;  /* of a head forward: each takes every parts-th block */
    const struct tern__attention_fns *fns;
    void *dmask; /* sums of the mask's gradient, one for each of its elements; NULL: not wanted */
} tern__attention;

/* A part of backward: whole blocks of queries and keys of a head of k and v, and which gradients it gives. */
typedef struct tern__attention_share {
    int64_t b, key_head;
    int64_t first_head, last_head; /* heads of q, from the first of the group on */
    int64_t first_query, last_query, first_key, last_key;
    bool queries; /* dq and the mask's; all keys take part    */
    bool keys;    /* dk and dv; all queries of all heads take part */
} tern__attention_share;

/* Scratch memory is of the type in which is computed: f64, or f32 for all others. */
typedef struct tern__attention_fns {
    /* A part of the result of a head of q, number (b H + h) parts + part. */
    int64_t (*forward_room)(const tern__attention *a); /* numbers of scratch memory */
    void (*forward)(const tern__attention *a, int64_t item, void *room);
    /* All queries of head number b H + h, at most TERN__ATTENTION_FEW; NULL: of bf16, as f32 does it. */
    int64_t (*few_room)(const tern__attention *a);
    void (*few)(const tern__attention *a, int64_t head, void *room);
    int64_t (*backward_room)(const tern__attention *a);
    void (*backward)(const tern__attention *a, const tern__attention_share *share, void *room);
} tern__attention_fns;

TERN__DECLARE_WIDTHS(tern__attention_fns, tern__attention_f32);
TERN__DECLARE_WIDTHS(tern__attention_fns, tern__attention_f64);
extern const tern__attention_fns tern__attention_bf16; /* on CPUs of tern__has_bf16_pairs */

#endif
