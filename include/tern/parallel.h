/* parallel.h - distributed data-parallel training: every rank has the same model and its own share of the
 * data, and gradients are averaged over the ranks while backward still runs.
 *
 * Threads: a ddp belongs to the thread of its group. */
#ifndef TERN_PARALLEL_H
#define TERN_PARALLEL_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Synchronises one model over the ranks of a group. */
typedef struct tern_ddp tern_ddp;

/* The weight of a rank in the mean of the gradients. */
typedef enum tern_normaliser {
    TERN_NORMALISER_RANK, /* all ranks count the same: the mean of the ranks' means, as in PyTorch */
    TERN_NORMALISER_LOSS  /* a rank counts as the number its loss was divided by: the gradient of the mean
                           * over the samples of all ranks. See tern_ddp_normaliser_set */
} tern_normaliser;

/* Options. Those that all ranks must share, with the names in `ignore`, are compared: E_MISMATCH. */
typedef struct tern_ddp_opts {
    size_t size;
    size_t first_bucket_bytes; /* bytes of gradients in the first bucket; default 1 MiB              */
    size_t bucket_bytes;       /* a bucket is closed when it has reached so many bytes; default 0: 2 MiB, or
                                * 25 MiB (PyTorch's bucket_cap_mb) for gradients on GPUs joined by NCCL */
    bool broadcast_buffers;    /* copy rank 0's buffers to all after every synchronised backward; default
                                * true                                                               */
    const char *const *ignore; /* [ignore_count] names of parameters and buffers, as in the state dict, that
                                * are not synchronised; read by tern_ddp_new only; default none.
                                * PyTorch's _ddp_params_and_buffers_to_ignore */
    int ignore_count;
    bool delay_all_reduce; /* reduce nothing before backward has ended; default false. apex's
                            * delay_allreduce                                                        */
    bool static_graph;     /* you promise that every backward uses the same parameters; E_STATE names the
                            * first difference; default false                                        */
    double gradient_predivide_factor;  /* f > 0: divides gradients by f before the sum, and by ranks / f after
                                        * it; default 1                                               */
    bool divide_by_initial_world_size; /* a rank in tern_ddp_join counts in the mean, with zeros; default
                                        * true. With TERN_NORMALISER_LOSS it does not: it has no samples */
    tern_normaliser normaliser;        /* default TERN_NORMALISER_RANK                               */
    bool straggler_warn; /* rank 0 logs a warning that names a rank for which the others wait more than a
                          * fifth of the time, over a second and 50 steps; once, until they wait less; default
                          * true */
    int checksum_every;  /* n > 0: in every n-th synchronised backward the ranks compare checksums of their
                          * parameters. If one differs: E_MISMATCH on all, which names the rank, the step and
                          * the parameter. It reads all parameters once. Buffers are not compared: they are
                          * rank 0's after every backward, or not synchronised. Default 0: never */
    bool mixed_kernels;  /* allow ranks to run other kernels than rank 0 (another CPU, oneDNN or TERN_DEVICE),
                          * which round differently; default false                                 */
    tern_dtype reduce_dtype; /* TERN_BF16 or TERN_F16: f32 gradients are exchanged in this type: rounded on
                              * each rank, summed in f32, and the mean rounded. Half the bytes, one more copy
                              * on each side. Between GPUs with the back end "nccl" partial sums are rounded
                              * to 16 bits too (tern_reduce_op). PyTorch's bf16_compress_hook and
                              * fp16_compress_hook. Default TERN_F32: gradients keep their own type */
    int microbatches; /* n > 1, a power of two: of n backwards the last is synchronised (tern_ddp_sync_set).
                       * Their gradients, f32 or f64, are summed as all_reduce sums those of ranks: p ranks
                       * with n get the bits of p n ranks without. tern_ddp_loss_mean has the mean of the
                       * ranks' sums of n losses. Between two of the backwards a gradient is that of the last
                       * one. Needs log2(n) times the gradients' memory. E_STATE: a backward is synchronised
                       * before the last, or the last is not. Default 0: any number, added one by one     */
} tern_ddp_opts;
/* Returns the default options. */
TERN_API tern_ddp_opts tern_ddp_defaults(void);

/* Attaches a ddp to a model. From now on every tern_backward, on a scope of `group` or of another group of
 * its family (tern_group_split), leaves in each gradient the mean over the ranks of `group`, which must all
 * make the same number of backwards. You go on calling the model itself; any function that uses its
 * parameters takes part. A backward that reaches the parameters on any other scope is E_STATE, unless
 * tern_ddp_sync_set has turned synchronisation off.
 *
 * This call seals the module tree, checks that all ranks have the same model (E_MISMATCH names the first
 * difference), and copies rank 0's parameters and buffers to all. Collective; if *err is already set, the
 * call fails on the peers too. Borrows module and group. Yours: tern_ddp_free, before both are freed.
 * torch.nn.parallel.DistributedDataParallel. */
TERN_API tern_ddp *tern_ddp_new(tern_module *module, tern_group *group, const tern_ddp_opts *opts,
                                tern_error *err);
TERN_API void tern_ddp_free(tern_ddp *ddp);

/* Sets what the next backward's loss was divided by on this rank, with TERN_NORMALISER_LOSS (else E_STATE).
 * Call it where tern_loss_normaliser cannot tell, as for a loss made of several. `count` must not be negative
 * (E_RANGE). When backwards accumulate, their counts are added; the mean over all samples is then exact if
 * the microbatches of a rank have equal counts and each loss was divided by their number. A rank with count 0
 * contributes nothing, even if its loss is NaN. If all ranks have count 0, no gradient is left. */
TERN_API int tern_ddp_normaliser_set(tern_ddp *ddp, double count, tern_error *err);

/* Turns synchronisation on or off, and returns the old setting; on at first. While it is off, backward only
 * accumulates this rank's gradients (PyTorch's no_sync, for gradient accumulation), and the next synchronised
 * backward averages the sums. All ranks must set the same. If ranks may be in tern_ddp_join, set it on all
 * ddps of the group, also those that the backward does not use. */
TERN_API bool tern_ddp_sync_set(tern_ddp *ddp, bool sync);

/* Returns the loss of the last synchronised backward that used the model, averaged over the ranks that used
 * it, each with its weight (tern_normaliser). It was exchanged with the last bucket. NaN before the first. */
TERN_API double tern_ddp_loss_mean(const tern_ddp *ddp);

/* ---- ranks with unequal numbers of batches ---- */

/* A callback for a rank in tern_ddp_join, called when the others have done a backward and the gradients are
 * in place. An optimizer's step here keeps its state (momentum) equal to theirs. A sharded optimizer
 * (tern_optim_shard) needs it, and so does a scaler: tern_scaler_step and tern_scaler_update. Returns
 * TERN_OK, or what tern_error_set returns. */
typedef int (*tern_join_fn)(void *ctx, tern_error *err);

typedef struct tern_join_opts {
    size_t size;
    bool throw_on_early_termination; /* the first rank that runs out before the others ends the group with an
                                      * error that names it; default false                           */
    tern_join_fn after_backward;     /* called after each backward of the others; default NULL: nothing */
    void *ctx;                       /* passed to after_backward                                     */
} tern_join_opts;
/* Returns the default options. */
TERN_API tern_join_opts tern_join_defaults(void);

/* Lets ranks have different numbers of batches. Every rank calls it after its last backward; it returns when
 * all ranks have called it. torch.nn.parallel.DistributedDataParallel.join.
 *
 * - What this rank does: it takes part in the synchronised backwards that other ranks still do, of all ddps
 *   of the group's family, with zeros.
 * - The gradient: the mean over all ranks, with zeros for those that have run out, or over the others alone
 *   (divide_by_initial_world_size). This rank gets it too, in the same bits. The mean loss is that of the
 *   others.
 * - Broadcast buffers: they are rank 0's until rank 0 runs out, then those of the highest rank that has not.
 * - The model at the end: of the ranks with the most backwards, the highest one's parameters and buffers are
 *   copied to all (without broadcast_buffers, PyTorch 2.6 leaves each rank its own buffers). No gradient is
 *   left.
 * - What is lost: gradients that this rank has accumulated without synchronising; and, without
 *   after_backward, the changes of optimizer state (momentum) in the meantime on the other ranks.
 * - When after_backward is required: for a sharded optimizer, and for one that a scaler steps, it must make
 *   the step (else E_STATE). Then all ranks skip the same steps and have the same scale. tern_amp with a
 *   dynamic scale has no such step: give all ranks the same number of batches.
 *
 * Errors: those of tern_backward, E_STATE (throw_on_early_termination), and what after_backward returns. */
TERN_API int tern_ddp_join(tern_ddp *ddp, const tern_join_opts *opts, tern_error *err);

/* ---- batch norm over the batches of all ranks ---- */

/* Turns every batch norm under `module` into a synchronised one, in place; parameters, buffers and options
 * stay. In training, each call then normalises with the mean and variance over the batches of all ranks of
 * `group` (borrowed), updates the running statistics with them, and backward computes the gradient of that.
 * All ranks must call in the same order, on scopes of the group's family (E_STATE). Batches may have
 * different sizes and may be empty; with TERN_NORMALISER_LOSS the gradients are those of one process with all
 * batches. Nothing changes in evaluation, or in a group of one rank. With a group from tern_group_split only
 * some ranks are synchronised. tern_ddp_join refuses such a model (E_STATE), since a rank that has run out
 * would be missing: go on with empty batches instead.
 *
 * The order is: convert, then amp, then ddp, then optimizer, then steps; after amp or tern_ddp_new it is
 * E_STATE. E_INVALID: no module, no group. torch.nn.SyncBatchNorm.convert_sync_batchnorm;
 * apex.parallel.convert_syncbn_model. */
TERN_API int tern_sync_batch_norm_convert(tern_module *module, tern_group *group, tern_error *err);

/* ---- the buckets in use ---- */

/* Return the number of buckets, and the bytes of gradients in one. A model with bf16 or f16 gradients has one
 * more bucket, of 0 bytes, for the loss and the map of used parameters, which stay f32. */
TERN_API int tern_ddp_bucket_count(const tern_ddp *ddp);
TERN_API size_t tern_ddp_bucket_bytes(const tern_ddp *ddp, int bucket);

#ifdef __cplusplus
}
#endif
#endif
