/* machine.h - what the cores under a bench can do at most: the yardstick of a profile. */
#ifndef TERN_CLI_MACHINE_H
#define TERN_CLI_MACHINE_H

#include "base/base.h"

typedef struct tern__machine {
    double gflops;   /* f32, a multiplication and an addition counting two           */
    double copy_gbs; /* bytes read plus bytes written, by plain stores, out of cache */
} tern__machine;

/* Of `threads` threads together; the best of a few tries. Ranks that want to know what each of them has while
 * all work call it at the same time. E_MEMORY. */
int tern__machine_measure(int threads, tern__machine *machine, tern_error *err);

/* One pass of that copy over `count` floats, for who times it beside something else. */
void tern__machine_copy(float *to, const float *from, size_t count, int threads);

#endif
