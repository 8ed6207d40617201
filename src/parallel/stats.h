/* stats.h - the counts and times of a ddp. */
#ifndef TERN_SRC_PARALLEL_STATS_H
#define TERN_SRC_PARALLEL_STATS_H

#include "parallel/straggler.h"

#include <tern/stats.h>

typedef struct tern__stats {
    const tern_scope *scope; /* of the running backward */
    int64_t posted, arrived; /* ns: when its first bucket (0: none yet) and its last were posted */
    tern_ddp_times last, sum;
    uint64_t iterations;
    int unused;
    size_t unused_bytes;
    int *ready; /* [leaf_count] leaf indices in the order in which they were ready */
    int ready_count;
    size_t *initial; /* [initial_count] bytes of the first buckets */
    int initial_count;
    tern__straggler straggler;
} tern__stats;

/* To be called once the first buckets are cut. */
int tern__stats_open(tern_ddp *ddp, tern_error *err);
void tern__stats_close(tern_ddp *ddp);

/* To be called during a synchronised backward: before its first gradient, when a gradient is ready, when a
 * bucket is posted, and when all works are done. */
void tern__stats_begin(tern_ddp *ddp, const tern_tensor *loss);
void tern__stats_ready(tern_ddp *ddp, const tern__leaf *leaf);
void tern__stats_posted(tern_ddp *ddp, int bucket);
void tern__stats_done(tern_ddp *ddp);

#endif
