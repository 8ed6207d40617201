/* data.h - dataset -> sampler (this rank's share, this epoch's order) -> loader -> batch.
 *
 * Threads: a sampler and a loader belong to one thread at a time; dataset->get is called by the loader's
 * workers, from several threads at once. A child of fork may not use its parent's loader. */
#ifndef TERN_DATA_H
#define TERN_DATA_H

#include <tern/autograd.h>
#include <tern/comm.h>
#include <tern/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- dataset ------------------------------------------------------------------------------------------ */

/* A map-style dataset: put it first in a struct of your own. One sample is `shape` f32 values and a target:
 * one i64 label, or a map of them, or of values. A net that begins with an Embedding casts its indices,
 * tern_cast(s, b.x, TERN_I64): up to 2^24 f32 has them all. */
typedef struct tern_dataset tern_dataset;
struct tern_dataset {
    int64_t length;
    int ndim;                /* of one sample                                                   */
    int64_t shape[4];        /* (C, H, W) for images, (C, D, H, W) for volumes                  */
    int target_ndim;         /* 0: a label                                                      */
    int64_t target_shape[4]; /* (H, W) for a map of an image                                    */
    tern_dtype target_dtype; /* of a map: TERN_F32, TERN_U8, TERN_I64 ..; a label is always i64 */
    int classes;             /* a label is in [0, classes); 0, and for maps: not checked        */
    /* Writes sample `index`, as it is in `epoch`, to x[0..prod(shape)) and its target to y. 0, or a negative
     * status with *err filled (tern_error_set). Called by several threads at once; must give the same sample
     * for the same epoch and index every time. */
    int (*get)(const tern_dataset *dataset, int64_t epoch, int64_t index, float *x, void *y, tern_error *err);
    void (*free)(tern_dataset *dataset); /* NULL: nothing to free */

    /* An iterable-style dataset, of samples that come one after the other and nobody knows how many
     * (torch.utils.data.IterableDataset), has no get and no length but these. open returns a cursor at the
     * beginning of part `part` of `parts`, which are read side by side by the ranks' workers; next writes the
     * sample there and moves on: 1, 0 at the end, or a negative status with *err filled
     * (tern_error_set). A cursor is used by one thread at a time, and closed at its end, after an error, or
     * when a pass is given up. */
    void *(*open)(const tern_dataset *dataset, int64_t epoch, int64_t part, int64_t parts, tern_error *err);
    int (*next)(void *cursor, float *x, void *y, tern_error *err);
    void (*close)(void *cursor); /* NULL: nothing to close */
};

TERN_API void tern_dataset_free(tern_dataset *dataset);

/* Sample i is x[i] with target y[i]: x (n, ..) of f32, y (n) of i64 labels, or (n, ..) of any dtype, which
 * are maps. Tensors that were kept or wrapped; their memory is shared and read where it is, and they may be
 * freed before. E_INVALID: NULL; E_LIFETIME: of a scope or module; E_DTYPE; E_SHAPE: unequal n, dimensions;
 * E_UNSUPPORTED: gaps. Yours: tern_dataset_free. torch.utils.data.TensorDataset. */
TERN_API tern_dataset *tern_tensor_dataset_new(const tern_tensor *x, const tern_tensor *y, tern_error *err);

/* Samples indices[0..count) of `dataset`, in that order; a sample may come several times. Copies the indices,
 * borrows `dataset`. E_INVALID: no dataset with get; E_RANGE: an index. Yours: tern_dataset_free.
 * torch.utils.data.Subset. */
TERN_API tern_dataset *tern_subset_new(const tern_dataset *dataset, const int64_t *indices, int64_t count,
                                       tern_error *err);

/* The samples of `dataset` that can be read, the same ones on all ranks: each is got once, in epoch 0, by one
 * of the ranks, and what fails there is left out everywhere. Its length tells how many those are; what and
 * why is a warning (tern_log_set) of the rank that tried. Collective; `group` may be NULL: alone. Borrows
 * `dataset`. E_INVALID: no dataset with get; E_IO: none can be read; those of tern_all_reduce. Yours:
 * tern_dataset_free. */
TERN_API tern_dataset *tern_readable_new(const tern_dataset *dataset, tern_group *group, tern_error *err);

typedef struct tern_idx_opts {
    size_t size;
    int classes;     /* a label outside [0, classes) is E_RANGE naming file and index; default 10 */
    float mean, std; /* x = (byte / 255 - mean) / std; default 0 and 1                            */
} tern_idx_opts;

TERN_API tern_idx_opts tern_idx_defaults(void);

/* (Fashion-)MNIST's files: `images` has magic 0x803 and `labels` 0x801, gzipped or not, read whole. Samples
 * are (1, rows, columns). Errors: E_IO (missing, truncated: expected and got bytes), E_FORMAT (magic, counts
 * differ), E_RANGE (a label). */
TERN_API tern_dataset *tern_idx_open(const char *images, const char *labels, const tern_idx_opts *opts,
                                     tern_error *err);

/* ---- sampler ------------------------------------------------------------------------------------------ */

typedef struct tern_sampler tern_sampler;

/* 0, 1, .. n-1: torch.utils.data.SequentialSampler. */
TERN_API tern_sampler *tern_sequential_sampler_new(int64_t n, tern_error *err);
/* torch.randperm(n) from a generator seeded with seed + epoch. */
TERN_API tern_sampler *tern_random_sampler_new(int64_t n, uint64_t seed, tern_error *err);

typedef struct tern_distributed_opts {
    size_t size;
    bool shuffle;   /* default true                                                                     */
    uint64_t seed;  /* the order of epoch e is torch.randperm from seed + e; default 0                  */
    bool drop_last; /* drop the tail so that all ranks get the same number; default false               */
    bool pad;       /* if nothing is dropped, repeat samples so that all ranks get the same number;
                       default true, as PyTorch. false: every sample exactly once over all ranks, for
                       exact evaluation                                                                 */
} tern_distributed_opts;

TERN_API tern_distributed_opts tern_distributed_defaults(void);

/* torch.utils.data.DistributedSampler(n, ranks, rank, shuffle, seed, drop_last), index for index. E_RANGE:
 * rank is not in [0, ranks - 1]. */
TERN_API tern_sampler *tern_distributed_sampler_new(int64_t n, int ranks, int rank,
                                                    const tern_distributed_opts *opts, tern_error *err);

/* Fills order[0 .. count) with the indices of an epoch; the same ones whenever it is asked for that epoch, so
 * that a run can be taken up again. TERN_OK, or a negative status with *err filled (tern_error_set). */
typedef int (*tern_order_fn)(void *arg, int64_t epoch, int64_t count, int64_t *order, tern_error *err);

/* An order of your own: `count` indices of [0, n) an epoch, repeated ones too, of this rank alone.
 * torch.utils.data.WeightedRandomSampler, SubsetRandomSampler, a Sampler of one's own. E_INVALID: no
 * function, a count; in a pass, E_RANGE: an index outside of [0, n). */
TERN_API tern_sampler *tern_sampler_new(int64_t n, int64_t count, tern_order_fn order, void *arg,
                                        tern_error *err);
TERN_API void tern_sampler_free(tern_sampler *sampler);

/* How many indices this rank gets in an epoch. */
TERN_API int64_t tern_sampler_length(const tern_sampler *sampler);
/* The loader advances the epoch by itself; this is for starting elsewhere (resume). */
TERN_API void tern_sampler_epoch_set(tern_sampler *sampler, int64_t epoch);
TERN_API int64_t tern_sampler_epoch_get(const tern_sampler *sampler);
/* out[0..length) = the indices of the current epoch, in order. */
TERN_API int tern_sampler_indices(tern_sampler *sampler, int64_t *out, tern_error *err);

/* ---- loader ------------------------------------------------------------------------------------------- */

typedef struct tern_loader tern_loader;

typedef struct tern_loader_opts {
    size_t size;
    int64_t batch_size;    /* samples in a batch of this rank; default 1                                   */
    bool shuffle;          /* a random sampler of the loader's own, from `seed`; default false             */
    uint64_t seed;         /* default 0                                                                    */
    tern_sampler *sampler; /* borrowed; default NULL: the loader makes its own. Not together with shuffle  */
    bool drop_last;        /* leave out a last batch that is not full; default false                       */
    int workers;           /* threads that fetch ahead; 0: the caller's own thread fetches; default 1      */
    int prefetch;          /* batches fetched ahead by each worker; default 2                              */
    int rank, ranks;       /* of an iterable dataset, this rank's parts: those that its workers read, of
                              ranks x workers; default 0, 1                                                */
} tern_loader_opts;

TERN_API tern_loader_opts tern_loader_defaults(void);

/* Batches come in the sampler's order whatever the number of workers, and at the end of a pass the loader
 * moves its sampler to the next epoch. Up to max(workers, 1) * prefetch + 1 batches may be held at a time;
 * that memory is allocated here, none later. Samples are asked for with the epoch that the sampler had when
 * the pass began. The loader borrows dataset and sampler. E_INVALID: shuffle with
 * a sampler, a batch size or a sample shape below 1; E_RANGE: workers, prefetch, or a sampler of more samples
 * than the dataset has.
 *
 * Batches for scopes on a GPU come there beside what it computes, two ahead of their use, and nobody waits
 * for it: what PyTorch's pin_memory and to(device, non_blocking=True) are for is not asked for. The first one
 * pins the loader's memory and takes blocks of the GPU's for three batches, and more only for a step that
 * holds more. The loader then belongs to that GPU, which is closed after it; scopes elsewhere get copies.
 *
 * Of an iterable dataset each worker makes batches of its own part, and they are handed out in turn, as
 * PyTorch does; parts may end at different times, and a rank may get more batches than another one
 * (tern_ddp_join). A pass that is taken up again must have as many workers, and reads again what it has
 * behind it. Yours: tern_loader_free, which waits for the samples being fetched and needs no pass
 * to be finished; batches that a scope still holds last until it ends. */
TERN_API tern_loader *tern_loader_new(tern_dataset *dataset, const tern_loader_opts *opts, tern_error *err);
TERN_API void tern_loader_free(tern_loader *loader);

typedef struct tern_batch {
    tern_tensor *x; /* (count, sample shape), f32                                 */
    tern_tensor *y; /* (count, target shape): i64 labels, or maps of target_dtype */
    int64_t count;
} tern_batch;

/* The next batch, as tensors of the scope over the loader's own memory, the host's or a GPU's; it goes back
 * when the scope ends. False only at the end of the epoch, and then the next call begins the next one. After
 * a failure (of a sample, of the GPU, or an earlier one in the scope) it returns true with NULL tensors, and
 * tern_scope_end tells. A loop that never calls that ends, too: asked for more batches than the loader has
 * room for, a scope that has failed gets false, and its error goes to the log. */
TERN_API bool tern_loader_next(tern_loader *loader, tern_scope *scope, tern_batch *batch);

/* Seconds that tern_loader_next has waited for samples, or fetched them itself, since the loader was made. 0
 * if it is NULL. */
TERN_API double tern_loader_waited(const tern_loader *loader);

/* Batches in a pass of this rank; 0 if the loader is NULL or of an iterable dataset. */
TERN_API int64_t tern_loader_length(const tern_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
