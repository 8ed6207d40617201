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

/* How much a rank counts in the mean of the gradients. */
typedef enum tern_normaliser {
    TERN_NORMALISER_RANK, /* as much as any other: PyTorch's mean of the ranks' means */
    TERN_NORMALISER_LOSS, /* as much as its loss was divided by: the gradient of the mean over all ranks'
                           * samples. See tern_ddp_normaliser_set */
} tern_normaliser;

/* What the ranks must do alike, the names in `ignore` too, is compared: E_MISMATCH. */
typedef struct tern_ddp_opts {
    size_t size;
    size_t first_bucket_bytes; /* of gradients; default 1 MiB                                        */
    size_t bucket_bytes;       /* a bucket is closed when it has reached this many; 0, the default: 2 MiB, or
                                * 25 MiB (PyTorch's bucket_cap_mb) of gradients on GPUs that NCCL joins */
    bool broadcast_buffers;    /* rank 0's buffers after every synchronised backward; default true   */
    const char *const *ignore; /* [ignore_count] names of parameters and buffers, as in the state dict, that
                                * each rank keeps to itself; read by tern_ddp_new only. Default none.
                                * PyTorch's _ddp_params_and_buffers_to_ignore */
    int ignore_count;
    bool delay_all_reduce; /* nothing is reduced before backward has ended; default false. apex's
                            * delay_allreduce                                                        */
    bool static_graph;     /* promises that every backward uses the same parameters: another one is E_STATE
                            * that names the first difference; default false                         */
    double gradient_predivide_factor; /* > 0: gradients are divided by it before the sum, and by the number of
                                       * ranks over it after; default 1                             */
    bool divide_by_initial_world_size; /* a rank in tern_ddp_join counts in the mean, with zeros; default
                                        * true. Not with TERN_NORMALISER_LOSS: it has no samples           */
    tern_normaliser normaliser;        /* default TERN_NORMALISER_RANK                               */
    bool straggler_warn; /* rank 0 logs a warning that names a rank for which the others wait more than
                          * a fifth of the time, over a second and 50 steps; once, until they no longer
                          * do; default true */
    int checksum_every;  /* > 0: in every so-manyth synchronised backward the ranks compare checksums of their
                          * parameters; a rank that has drifted is E_MISMATCH on all, which names it, the step
                          * and the parameter. Costs a reading of the parameters. Default 0: never. Buffers
                          * are not compared: they are rank 0's after every backward, or each rank's own  */
    bool mixed_kernels;  /* ranks may run other kernels than rank 0 (another CPU, another oneDNN, another
                          * TERN_DEVICE), which round otherwise; default false                     */
    tern_dtype reduce_dtype; /* TERN_BF16 or TERN_F16: in which f32 gradients go over: each rank's are
                              * rounded, summed in f32, and the mean is rounded; half the bytes, and a copy
                              * more on each side. With the back end "nccl" sums on their way between GPUs
                              * are of 16 bits too (tern_reduce_op). PyTorch's bf16_compress_hook and
                              * fp16_compress_hook. TERN_F32, the default: all gradients go as they are */
} tern_ddp_opts;
TERN_API tern_ddp_opts tern_ddp_defaults(void);

/* Attaches to the model: from now on every tern_backward on a scope of `group`, or of any other of its family
 * (tern_group_split), leaves each gradient as the mean over the ranks of `group`, which make equally many.
 * You keep calling the model; any function that uses its parameters takes part. A backward that reaches them
 * on any other scope is E_STATE, unless it is not to be synchronised. Seals the tree, checks that all ranks
 * have the same model (E_MISMATCH names the first difference) and copies rank 0's parameters and buffers to
 * all. Collective; called with an error already set, it makes the peers' call fail with it too. Borrows
 * module and group. Yours: tern_ddp_free, before both. torch.nn.parallel.DistributedDataParallel. */
TERN_API tern_ddp *tern_ddp_new(tern_module *module, tern_group *group, const tern_ddp_opts *opts,
                                tern_error *err);
TERN_API void tern_ddp_free(tern_ddp *ddp);

/* With TERN_NORMALISER_LOSS: what the next backward's loss was divided by on this rank, where
 * tern_loss_normaliser cannot tell (a loss put together from several); not negative. Backwards that
 * accumulate add up what they were divided by; the mean over all samples is exact then if the microbatches
 * of a rank count alike and each loss was divided by their number. A rank of count 0 contributes nothing,
 * even if its loss is NaN; if all ranks do, no gradient is left. E_RANGE; E_STATE without the option. */
TERN_API int tern_ddp_normaliser_set(tern_ddp *ddp, double count, tern_error *err);

/* false: backward only accumulates locally (PyTorch's no_sync, for gradient accumulation); the next
 * synchronised one averages the sums. Returns what it was. All ranks the same; and where ranks may be in
 * tern_ddp_join, all ddps of a group, those too that the backward does not use. */
TERN_API bool tern_ddp_sync_set(tern_ddp *ddp, bool sync);

/* The loss of the last synchronised backward that used the model, as the mean over the ranks that did, each
 * as much as its normaliser says; it came with the last bucket. NaN before that. */
TERN_API double tern_ddp_loss_mean(const tern_ddp *ddp);

/* ---- ranks with unequal numbers of batches ---- */

/* What a rank does in tern_ddp_join when the others have done a backward and the gradients are in place: an
 * optimizer's step here keeps its state (momentum) as theirs. A sharded one (tern_optim_shard) needs it, and
 * so does a scaler: tern_scaler_step and tern_scaler_update. Returns TERN_OK, or what tern_error_set
 * returns. */
typedef int (*tern_join_fn)(void *arg, tern_error *err);

typedef struct tern_join_opts {
    size_t size;
    bool throw_on_early_termination; /* the first rank that runs out before the others ends the group, with an
                                      * error that names it; default false                           */
    tern_join_fn after_backward;     /* default NULL */
    void *arg;
} tern_join_opts;
TERN_API tern_join_opts tern_join_defaults(void);

/* Every rank calls it after its last backward: takes part in the others' synchronised backwards, of all ddps
 * of this group and its relatives, until all have called it. The gradient is the mean with zeros for the
 * ranks that have run out, or that of the others alone (divide_by_initial_world_size), and in the same bits
 * here as there; the mean loss is that of the others. Then the parameters and buffers of the highest rank
 * that had most backwards go to all, and no gradient is left. Buffers that are broadcast are rank 0's until
 * it runs out, then the highest other rank's. What a rank has accumulated without synchronising is lost, and
 * so, without after_backward, is what the optimizers of the others learned meanwhile of momentum. A sharded
 * optimizer, and one that is stepped by a scaler, wants an after_backward that steps it (E_STATE): all ranks
 * skip the same steps and have the same scale. Under amp with a dynamic scale there is no such step: give all
 * ranks as many batches. Errors: as tern_backward; E_STATE by throw_on_early_termination; what after_backward
 * returns.
 * torch.nn.parallel.DistributedDataParallel.join. */
TERN_API int tern_ddp_join(tern_ddp *ddp, const tern_join_opts *opts, tern_error *err);

/* ---- batch norm over the batches of all ranks ---- */

/* Makes every batch norm of the tree under `module` a synchronised one, in place: parameters, buffers and
 * options stay. In training each call then normalises with the mean and the variance over the batches of all
 * ranks of `group` (borrowed), moves the running ones by them, and sends back the gradient of that; all ranks
 * call in the same order, on scopes of the same family as the group (E_STATE). Batches need not be equal, and
 * may be empty; with TERN_NORMALISER_LOSS the gradients are those of one process with all of them. In
 * evaluation, and in a group of one, nothing changes. Groups made by tern_group_split synchronise some ranks
 * only. Ranks in tern_ddp_join would be missing: it refuses such a model (E_STATE); go on with empty batches
 * instead. Before amp and tern_ddp_new (E_STATE): convert, then amp, then ddp, then
 * optimizer, then steps. E_INVALID: no
 * module, no group. torch.nn.SyncBatchNorm.convert_sync_batchnorm; apex.parallel.convert_syncbn_model. */
TERN_API int tern_sync_batch_norm_convert(tern_module *module, tern_group *group, tern_error *err);

/* ---- what there is ---- */

/* Buckets in use: their number, and the bytes of gradients in one. After gradients of bf16 and f16 there is
 * one of 0 bytes for the loss and the map of used parameters, which keep f32. */
TERN_API int tern_ddp_bucket_count(const tern_ddp *ddp);
TERN_API size_t tern_ddp_bucket_bytes(const tern_ddp *ddp, int bucket);

#ifdef __cplusplus
}
#endif
#endif
