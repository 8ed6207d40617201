/* stats.h - what a ddp did in its last backward, and how long that took.
 *
 * PyTorch's counterpart, DistributedDataParallel._get_ddp_logging_data, samples every hundredth iteration.
 * tern measures every one, at the cost of a few readings of the clock.
 *
 * Threads: as the ddp. */
#ifndef TERN_STATS_H
#define TERN_STATS_H

#include <tern/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Times of a synchronised backward on this rank, in nanoseconds. */
typedef struct tern_ddp_times {
    int64_t forward;       /* from the scope's first op, or its last backward, until tern_backward       */
    int64_t backward;      /* from there until the last gradient is written                              */
    int64_t communication; /* from the start of the first bucket until all collectives are done          */
    int64_t overlap;       /* the part of communication during which backward still computed             */
} tern_ddp_times;

typedef struct tern_ddp_stats {
    size_t size; /* sizeof(tern_ddp_stats), set by the caller */
    int rank, world;
    uint64_t iterations; /* synchronised backwards so far                             */
    int parameters;      /* parameters that are synchronised                          */
    int unused;          /* those without a gradient from this rank in the last one   */
    size_t parameter_bytes, unused_bytes;
    size_t first_bucket_bytes, bucket_bytes; /* the limits, as in tern_ddp_opts                */
    int initial_buckets, buckets;            /* number before and after the rebuild            */
    int ready;                               /* parameters whose gradients the last one made   */
    bool has_rebuilt, broadcast_buffers;
    int slow_rank;     /* the rank that waited least in the last window; -1: no window yet. A window is at
                        * least 50 steps and one second                                                   */
    double slow_share; /* how much longer the other ranks waited, on average, as a share of the window    */
    tern_ddp_times last, mean; /* of the last backward, and the mean of all; zeros before the first */
} tern_ddp_stats;

/* Fills *out up to out->size, so set that first: `tern_ddp_stats stats = {.size = sizeof(stats)};`.
 * E_INVALID: a pointer is NULL, or the size was not set. E_UNSUPPORTED: the size belongs to a newer version
 * of the library. */
TERN_API int tern_ddp_stats_get(const tern_ddp *ddp, tern_ddp_stats *out, tern_error *err);

/* Returns the bytes of gradients in a bucket as it was before the rebuild; 0 if there is no such bucket.
 * tern_ddp_bucket_bytes has the buckets in use. */
TERN_API size_t tern_ddp_initial_bucket_bytes(const tern_ddp *ddp, int bucket);

/* Returns the name of the parameter whose gradient was ready as number `place`, from 0, in the last
 * synchronised backward; borrowed. NULL if `place` is not below `ready`. */
TERN_API const char *tern_ddp_ready_name(const tern_ddp *ddp, int place);

/* Prints all statistics as a table on stdout. */
TERN_API void tern_ddp_stats_print(const tern_ddp *ddp);

#ifdef __cplusplus
}
#endif
#endif
