/* parallel.h - data-parallel training: the same model on every rank, gradients averaged while backward runs.
 *
 * Threads: a ddp belongs to the thread of its group. */
#ifndef TERN_PARALLEL_H
#define TERN_PARALLEL_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_ddp tern_ddp;

typedef struct tern_ddp_opts {
    size_t size;
    size_t first_bucket_bytes; /* of gradients; default 1 MiB                                        */
    size_t bucket_bytes;       /* a bucket is closed when it has reached this many; default 2 MiB    */
    bool broadcast_buffers;    /* rank 0's buffers after every synchronised backward; default true   */
} tern_ddp_opts;
TERN_API tern_ddp_opts tern_ddp_defaults(void);

/* Attaches to the model: from now on every tern_backward on a scope of `group` leaves each gradient as the
 * mean over the ranks. You keep calling the model; any function that uses its parameters takes part. Seals
 * the tree, checks that all ranks have the same model (E_MISMATCH names the first difference) and copies rank
 * 0's parameters and buffers to all. Collective; called with an error already set, it makes the peers' call
 * fail with it too. Borrows module and group. Yours: tern_ddp_free, before both.
 * torch.nn.parallel.DistributedDataParallel. */
TERN_API tern_ddp *tern_ddp_new(tern_module *module, tern_group *group, const tern_ddp_opts *opts,
                                tern_error *err);
TERN_API void tern_ddp_free(tern_ddp *ddp);

/* false: backward only accumulates locally (PyTorch's no_sync, for gradient accumulation); the next
 * synchronised one averages the sums. Returns what it was. All ranks the same. */
TERN_API bool tern_ddp_sync_set(tern_ddp *ddp, bool sync);

/* The loss of the last synchronised backward as the mean over the ranks; it came with the last bucket. NaN
 * before that. */
TERN_API double tern_ddp_loss_mean(const tern_ddp *ddp);

/* Buckets in use: their number, and the bytes of gradients in one. */
TERN_API int tern_ddp_bucket_count(const tern_ddp *ddp);
TERN_API size_t tern_ddp_bucket_bytes(const tern_ddp *ddp, int bucket);

#ifdef __cplusplus
}
#endif
#endif
