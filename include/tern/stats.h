/* stats.h - what a ddp did in its last backward and how long it took. PyTorch's counterpart is
 * DistributedDataParallel._get_ddp_logging_data, which samples every hundredth iteration; here every one is
 * measured, for a few readings of the clock.
 *
 * Threads: as the ddp. */
#ifndef TERN_STATS_H
#define TERN_STATS_H

#include <tern/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of a synchronised backward, in nanoseconds on this rank. */
typedef struct tern_ddp_times {
    int64_t forward;       /* from the first op of the scope, or since its last backward, to tern_backward */
    int64_t backward;      /* from there until the last gradient is written                              */
    int64_t communication; /* from the first bucket's post until all works are done                      */
    int64_t overlap;       /* the part of communication in which backward still computed                 */
} tern_ddp_times;

typedef struct tern_ddp_stats {
    size_t size; /* sizeof(tern_ddp_stats), set by the caller */
    int rank, world;
    uint64_t iterations; /* synchronised backwards so far                   */
    int parameters;      /* that are synchronised                           */
    int unused;          /* of them had none from this rank in the last one */
    size_t parameter_bytes, unused_bytes;
    size_t first_bucket_bytes, bucket_bytes; /* the caps                                       */
    int initial_buckets, buckets;            /* number before and after the rebuild            */
    int ready;                               /* parameters whose gradients the last one made   */
    bool has_rebuilt, broadcast_buffers;
    int slow_rank; /* that waited least in the last window; -1: none yet. A window is 50 steps and a second,
                    * at least                                                                        */
    double slow_share; /* how much longer the others waited, on average, of the window's time             */
    tern_ddp_times last, mean; /* of the last one, and over all; zeros before the first */
} tern_ddp_stats;

/* Fills *out, as far as out->size reaches: `tern_ddp_stats stats = {.size = sizeof(stats)};`. E_INVALID if a
 * pointer is NULL or the size was not set, E_UNSUPPORTED if it is that of a newer version of the library. */
TERN_API int tern_ddp_stats_get(const tern_ddp *ddp, tern_ddp_stats *out, tern_error *err);

/* Bytes of gradients in a bucket as cut before the rebuild; tern_ddp_bucket_bytes has those in use. 0 where
 * there is no such bucket. */
TERN_API size_t tern_ddp_initial_bucket_bytes(const tern_ddp *ddp, int bucket);

/* The parameter whose gradient was ready as number `place` in the last synchronised backward, counted from 0:
 * borrowed; NULL at and after `ready`. */
TERN_API const char *tern_ddp_ready_name(const tern_ddp *ddp, int place);

/* All of it as a table on stdout. */
TERN_API void tern_ddp_stats_print(const tern_ddp *ddp);

#ifdef __cplusplus
}
#endif
#endif
