/* data.h - loading of training data: dataset -> sampler (this rank's share, this epoch's order) -> loader ->
 * batch.
 *
 * Threads: a sampler and a loader belong to one thread at a time. dataset->get is called by the loader's
 * worker threads, several at once. They block all signals except SIGSEGV, SIGBUS, SIGFPE, SIGILL and
 * SIGABRT, which your handlers get. If no batch comes for a minute, a warning names the functions of the
 * dataset that have not returned, and their samples. (Without workers a thread that otherwise sleeps does
 * this, also for tern_readable_new.) A forked child cannot use its parent's loader: tern_loader_next is
 * E_FORKED, and tern_loader_free gives back the child's copy of the memory. */
#ifndef TERN_DATA_H
#define TERN_DATA_H

#include <tern/autograd.h>
#include <tern/comm.h>
#include <tern/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- dataset ------------------------------------------------------------------------------------------ */

/* A dataset of your own: put this struct first in a struct of yours, and set to zero what you do not use, as
 * designated initialisers do. A sample is an array of `shape`, of f32 or of another `dtype`, such as the i64
 * or i32 indices of a net that begins with an embedding; and a target: an i64 label, or a map of labels or
 * values. */
typedef struct tern_dataset tern_dataset;
struct tern_dataset {
    int64_t length;          /* number of samples                                               */
    int ndim;                /* number of dimensions of a sample                                */
    int64_t shape[4];        /* (C, H, W) for images, (C, D, H, W) for volumes                  */
    int target_ndim;         /* 0: the target is a label                                        */
    int64_t target_shape[4]; /* (H, W) for a map of an image                                    */
    tern_dtype target_dtype; /* of a map: TERN_F32, TERN_U8, TERN_I64 ..; a label is always i64 */
    int classes;             /* labels are in [0, classes); 0, and for maps: not checked        */

    /* Map-style datasets. Writes sample `index` of `epoch` to x[0..prod(shape)), which is memory of `dtype`
     * (cast the pointer if that is not f32), and its target to y. Returns
     * 0, or a negative status with *err filled (tern_error_set). Several threads call it at once. It must
     * give the same sample for the same epoch and index every time. */
    int (*get)(const tern_dataset *dataset, int64_t epoch, int64_t index, float *x, void *y, tern_error *err);
    void (*free)(tern_dataset *dataset); /* NULL: nothing to free */

    /* Iterable-style datasets, whose samples come one after the other, in unknown number
     * (torch.utils.data.IterableDataset). Such a dataset has these functions, and neither `get` nor `length`.
     * `open` returns a cursor at the start of part `part` of `parts`, which the workers of all ranks read in
     * parallel. `next` writes the next sample to x and y and returns 1; 0 at the end; or a negative status
     * with *err filled. One thread at a time uses a cursor. It is closed at its end, after an error, or when
     * the pass is given up. */
    void *(*open)(const tern_dataset *dataset, int64_t epoch, int64_t part, int64_t parts, tern_error *err);
    int (*next)(void *cursor, float *x, void *y, tern_error *err);
    void (*close)(void *cursor); /* NULL: nothing to close */

    tern_dtype dtype;  /* of x; 0 is TERN_F32 */
    void *reserved[3]; /* NULL */
};

/* Calls the dataset's `free`. NULL is allowed. */
TERN_API void tern_dataset_free(tern_dataset *dataset);

/* Makes a dataset whose sample i is x[i] with target y[i]. x is (n, ..) of any dtype; y is (n) i64 labels, or
 * (n, ..) maps of any dtype. Both must be kept or wrapped tensors; their memory is shared, not copied, and
 * you may free them before the dataset. E_INVALID: NULL; E_LIFETIME: a tensor of a scope or module; E_DTYPE;
 * E_SHAPE: different n, or dimensions; E_UNSUPPORTED: gaps. Yours: tern_dataset_free.
 * torch.utils.data.TensorDataset. */
TERN_API tern_dataset *tern_tensor_dataset_new(const tern_tensor *x, const tern_tensor *y, tern_error *err);

/* Makes a dataset of the samples indices[0..count) of `dataset`, in this order; an index may occur several
 * times. Copies the indices, borrows `dataset`. E_INVALID: no dataset with get, no indices; E_RANGE: an
 * index, a negative count. Yours: tern_dataset_free. torch.utils.data.Subset. */
TERN_API tern_dataset *tern_subset_new(const tern_dataset *dataset, const int64_t *indices, int64_t count,
                                       tern_error *err);

/* Makes a dataset of those samples of `dataset` that can be read, the same on all ranks. Each sample is read
 * once, in epoch 0, by one of the ranks; samples that fail are left out everywhere. The new length is the
 * number that is left; the rank that tried logs a warning for each failure (tern_log_set). A lack of memory
 * or file descriptors leaves no sample out, but is an error. Collective; `group` may be NULL for a single
 * process. Borrows `dataset`. E_INVALID: no dataset with get; E_IO: no sample can be read; E_MEMORY, and E_IO
 * with native EMFILE or ENFILE; and the errors of tern_all_reduce. Yours: tern_dataset_free. */
TERN_API tern_dataset *tern_readable_new(const tern_dataset *dataset, tern_group *group, tern_error *err);

typedef struct tern_idx_opts {
    size_t size;
    int classes;     /* a label outside [0, classes) is E_RANGE, which names file and index; default 10 */
    float mean, std; /* x = (byte / 255 - mean) / std; default 0 and 1                            */
} tern_idx_opts;

TERN_API tern_idx_opts tern_idx_defaults(void);

/* Opens MNIST's or Fashion-MNIST's files: `images` has magic number 0x803, `labels` 0x801; gzipped or not.
 * They are read as a whole. Samples are (1, rows, columns). E_IO: missing or truncated (expected and got
 * bytes); E_FORMAT: a magic number, or different counts; E_RANGE: a label. Yours: tern_dataset_free. */
TERN_API tern_dataset *tern_idx_open(const char *images, const char *labels, const tern_idx_opts *opts,
                                     tern_error *err);

/* ---- sampler ------------------------------------------------------------------------------------------ */

typedef struct tern_sampler tern_sampler;

/* Gives 0, 1, .. n - 1. torch.utils.data.SequentialSampler. Samplers are yours: tern_sampler_free. */
TERN_API tern_sampler *tern_sequential_sampler_new(int64_t n, tern_error *err);
/* Gives torch.randperm(n), from a generator seeded with seed + epoch. */
TERN_API tern_sampler *tern_random_sampler_new(int64_t n, uint64_t seed, tern_error *err);

typedef struct tern_distributed_opts {
    size_t size;
    bool shuffle;   /* default true                                                                     */
    uint64_t seed;  /* epoch e has the order of torch.randperm with seed + e; default 0                 */
    bool drop_last; /* drop samples at the end, so that all ranks get the same number; default false    */
    bool pad;       /* if nothing is dropped, repeat samples, so that all ranks get the same number;
                       default true, as PyTorch. false: every sample exactly once over all ranks, for
                       exact evaluation                                                                 */
    int64_t block; /* the ranks get so many samples of the order in turn, and rank r of R the blocks r, r + R,
                       ..; dropping and padding then make the blocks of all ranks full. R times the block in
                       R ranks are the same samples as in any other number. Default 1, as PyTorch; Hugging
                       Face's BatchSamplerShard with the block of a batch                               */
} tern_distributed_opts;

TERN_API tern_distributed_opts tern_distributed_defaults(void);

/* Gives rank `rank` of `ranks` its share of 0, 1, .. n - 1, index for index that of
 * torch.utils.data.DistributedSampler(n, ranks, rank, shuffle, seed, drop_last). E_RANGE: ranks < 1, rank is
 * not in [0, ranks - 1], or block < 1. */
TERN_API tern_sampler *tern_distributed_sampler_new(int64_t n, int ranks, int rank,
                                                    const tern_distributed_opts *opts, tern_error *err);

/* Fills order[0 .. count) with the indices of an epoch; the same ones whenever it is asked for that epoch, so
 * that a run can be taken up again. TERN_OK, or a negative status with *err filled (tern_error_set). */
typedef int (*tern_order_fn)(int64_t epoch, int64_t count, int64_t *order, void *ctx, tern_error *err);

/* An order of your own: `count` indices of [0, n) an epoch, repeated ones too, of this rank alone.
 * `ctx` must outlive the sampler.
 * torch.utils.data.WeightedRandomSampler, SubsetRandomSampler, a Sampler of one's own. E_INVALID: no
 * function, a count; in a pass, E_RANGE: an index outside of [0, n). */
TERN_API tern_sampler *tern_sampler_new(int64_t n, int64_t count, tern_order_fn order, void *ctx,
                                        tern_error *err);
TERN_API void tern_sampler_free(tern_sampler *sampler);

/* Returns the number of indices that this rank gets in an epoch. */
TERN_API int64_t tern_sampler_length(const tern_sampler *sampler);
/* Set and get the epoch. The loader advances it; set it yourself to start at another one (resume). */
TERN_API void tern_sampler_epoch_set(tern_sampler *sampler, int64_t epoch);
TERN_API int64_t tern_sampler_epoch_get(const tern_sampler *sampler);
/* Writes the indices of the current epoch to out[0..length), in order. */
TERN_API int tern_sampler_indices(tern_sampler *sampler, int64_t *out, tern_error *err);

/* ---- loader ------------------------------------------------------------------------------------------- */

typedef struct tern_loader tern_loader;

typedef struct tern_loader_opts {
    size_t size;
    int64_t batch_size;    /* samples in a batch of this rank; default 1                                   */
    bool shuffle;          /* make a random sampler from `seed`; default false                             */
    uint64_t seed;         /* default 0                                                                    */
    tern_sampler *sampler; /* borrowed; not together with shuffle; default NULL: the loader makes its own  */
    bool drop_last;        /* leave out a last batch that is not full; default false                       */
    int workers;           /* threads that fetch ahead; 0: the calling thread fetches; default 1           */
    int prefetch;          /* batches that each worker fetches ahead; default 2                            */
    int rank, ranks;       /* for iterable datasets: this rank and their number. The dataset has
                              ranks x workers parts, of which this rank's workers read theirs; default 0, 1 */
} tern_loader_opts;

TERN_API tern_loader_opts tern_loader_defaults(void);

/* Makes a loader. Batches come in the sampler's order, whatever the number of workers, and at the end of a
 * pass the loader moves its sampler to the next epoch. Samples are read for the epoch that the sampler had
 * when the pass began. All memory, for up to max(workers, 1) * prefetch + 1 batches, is allocated here.
 * Borrows dataset and sampler. Yours: tern_loader_free, at any point of a pass; it waits for the samples that
 * are being fetched. Batches that a scope still holds are valid until it ends. NULL on error: E_INVALID
 * (shuffle with a sampler; a batch size or sample shape below 1), E_RANGE (workers, prefetch, or a sampler of
 * more samples than the dataset has).
 *
 * GPUs: batches for a scope on a GPU are copied there while it computes, two batches before their use, and
 * nothing waits for it; so there is no counterpart of PyTorch's pin_memory and to(device, non_blocking=True).
 * The first such batch pins the loader's memory and takes GPU memory for three batches; more is taken only
 * for a step that holds more. The loader then belongs to that GPU: free it before the GPU is closed. Scopes
 * elsewhere get copies.
 *
 * Iterable datasets: each worker makes batches from its own part, and the batches are handed out in turn, as
 * in PyTorch. Parts may have different lengths, so one rank may get more batches than another
 * (tern_ddp_join). A pass that is resumed needs the same number of workers, and reads again what it has read
 * before. */
TERN_API tern_loader *tern_loader_new(tern_dataset *dataset, const tern_loader_opts *opts, tern_error *err);
TERN_API void tern_loader_free(tern_loader *loader);

/* A batch. Both tensors belong to the scope. */
typedef struct tern_batch {
    tern_tensor *x; /* (count, sample shape), of the dataset's dtype              */
    tern_tensor *y; /* (count, target shape): i64 labels, or maps of target_dtype */
    int64_t count;
    void *reserved[4]; /* NULL */
} tern_batch;

/* Gets the next batch, as tensors of the scope over the loader's memory, on the host or a GPU, which the
 * loader uses again when the scope has ended. Returns false at the end of the epoch; the next call then
 * begins the next epoch. If a sample or the GPU fails, or the scope has failed before, it returns true with
 * NULL tensors, and tern_scope_end returns the error. A loop that never calls tern_scope_end ends too: when a
 * failed scope asks for more batches than the loader has memory for, it gets false, and its error is
 * logged. */
TERN_API bool tern_loader_next(tern_loader *loader, tern_scope *scope, tern_batch *batch);

/* Waits for the next batch, at most `timeout_s` seconds, and takes none. Returns 1 if tern_loader_next need
 * not wait: the batch is there, or its error, or the end of the epoch; 0 after the time; or a negative
 * status: E_RANGE, E_FORKED, or an error of the sampler. A program that must do something else while a
 * dataset hangs, such as saving (tern_preempt_pending), calls it before tern_loader_next. Without workers it
 * returns 1, because tern_loader_next fetches the batch itself. */
TERN_API int tern_loader_wait(tern_loader *loader, double timeout_s, tern_error *err);

/* Returns the seconds that tern_loader_next and tern_loader_wait have waited for samples, or fetched them,
 * since the loader was made; 0 for NULL. */
TERN_API double tern_loader_waited(const tern_loader *loader);

/* Returns the number of batches in a pass of this rank; 0 for NULL or an iterable dataset. */
TERN_API int64_t tern_loader_length(const tern_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
