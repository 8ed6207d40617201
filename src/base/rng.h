/* rng.h - the generator's float loops, one set per instruction set; all give the same bits. */
#ifndef TERN_SRC_RNG_H
#define TERN_SRC_RNG_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tern__rng_loops {
    const char *name;
    bool (*is_supported)(void);
    /* d[i] = d[i] * range + from, fused. */
    void (*scale)(float *d, size_t n, float range, float from);
    /* Turns blocks of 16 uniforms into normals. */
    void (*normal)(float *d, size_t blocks, float mean, float std);
} tern__rng_loops;

/* Best first; the last one is supported everywhere. */
extern const tern__rng_loops *const tern__rng_loops_list[];
extern const int tern__rng_loops_count;

#endif
