/* loader_new.c - a loader's options, memory and workers. */
#include "base/opts.h"
#include "base/pages.h"
#include "base/thread.h"
#include "data/loader/loader_inner.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORKERS = 1024, MAX_PREFETCH = 1024 };

static const char FUNC[] = "tern_loader_new";

tern_loader_opts tern_loader_defaults(void)
{
    return (tern_loader_opts){
        .size = sizeof(tern_loader_opts), .batch_size = 1, .workers = 1, .prefetch = 2, .ranks = 1};
}

/* ---- checks ---- */

static int loader_check_opts(const tern_loader_opts *opts, tern_error *err)
{
    if (opts->shuffle && opts->sampler)
        return tern__error_set(err, FUNC, TERN_E_INVALID,
                               "shuffle and a sampler exclude each other: the sampler decides the order");
    if (opts->batch_size < 1)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "batch_size is %lld, expected at least 1",
                               (long long)opts->batch_size);
    if (opts->workers < 0 || opts->workers > MAX_WORKERS)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "workers is %d, expected [0, %d]", opts->workers,
                               MAX_WORKERS);
    if (opts->prefetch < 1 || opts->prefetch > MAX_PREFETCH)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "prefetch is %d, expected [1, %d]", opts->prefetch,
                               MAX_PREFETCH);
    if (opts->ranks < 1)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "ranks is %d, expected at least 1", opts->ranks);
    if (opts->rank < 0 || opts->rank >= opts->ranks)
        return tern__error_set(err, FUNC, TERN_E_RANGE, "rank is %d, expected [0, %d] for %d ranks",
                               opts->rank, opts->ranks - 1, opts->ranks);
    return TERN_OK;
}

/* Counts the elements of a shape; `name` is the field that has it. */
static int loader_count_elements(const char *name, int ndim, const int64_t *shape, int64_t *count,
                                 tern_error *err)
{
    *count = 1;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 1 || __builtin_mul_overflow(*count, shape[i], count))
            return tern__error_set(err, FUNC, TERN_E_INVALID, "the dataset's %s[%d] is %lld", name, i,
                                   (long long)shape[i]);
    return TERN_OK;
}

static bool has_dimensions(int ndim)
{
    return ndim >= 0 && ndim <= 4;
}

static bool has_source(const tern_dataset *dataset)
{
    return dataset->get ? dataset->length >= 0 : dataset->open && dataset->next;
}

/* Sets the size of a sample and of its target. */
static int measure_samples(tern_loader *loader, const tern_dataset *dataset, tern_error *err)
{
    int64_t values;
    if (!dataset || !has_source(dataset) || !has_dimensions(dataset->ndim) ||
        !has_dimensions(dataset->target_ndim))
        return tern__error_set(err, FUNC, TERN_E_INVALID,
                               "expected a dataset with get and a length of at least 0, or with open and "
                               "next, and samples and targets of at most 4 dimensions");
    if (loader_count_elements("shape", dataset->ndim, dataset->shape, &loader->sample_values, err) ||
        loader_count_elements("target_shape", dataset->target_ndim, dataset->target_shape, &values, err))
        return TERN_E_INVALID;
    size_t bytes = tern_dtype_bytes(tern__target_dtype(dataset));
    if (bytes == 0 || __builtin_mul_overflow((size_t)values, bytes, &loader->target_bytes))
        return tern__error_set(err, FUNC, TERN_E_INVALID, "the dataset's target_dtype is %d, of %lld values",
                               dataset->target_dtype, (long long)values);
    loader->value_bytes = tern_dtype_bytes(dataset->dtype);
    if (loader->value_bytes == 0)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "the dataset's dtype is %d", dataset->dtype);
    return TERN_OK;
}

/* ---- parts ---- */

/* A stream gets a sampler of 0 samples, which counts epochs. */
static int sampler_init(tern_loader *loader, tern_error *err)
{
    const tern_loader_opts *opts = &loader->opts;
    int64_t n = loader->stream ? 0 : loader->dataset->length;
    if (loader->stream && (opts->shuffle || opts->sampler))
        return tern__error_set(err, FUNC, TERN_E_INVALID,
                               "a stream comes in its own order: expected no sampler and no shuffle");
    loader->sampler = opts->sampler;
    if (!opts->sampler) {
        loader->own_sampler =
            opts->shuffle ? tern_random_sampler_new(n, opts->seed, err) : tern_sequential_sampler_new(n, err);
        loader->sampler = loader->own_sampler;
    }
    if (!loader->sampler) return TERN_E_MEMORY;
    int64_t span = tern__sampler_span(loader->sampler);
    if (span > n)
        return tern__error_set(err, FUNC, TERN_E_RANGE,
                               "the sampler is for %lld samples, the dataset has %lld", (long long)span,
                               (long long)n);
    int64_t length = tern_sampler_length(loader->sampler);
    loader->batches = tern__loader_batches(loader, length);
    loader->indices = tern__alloc((size_t)length * sizeof(int64_t), FUNC, err);
    return loader->indices ? TERN_OK : TERN_E_MEMORY;
}

/* Allocates whole pages, zeroed, so that they can be pinned. */
static void *pages_new(size_t *bytes, tern_error *err)
{
    size_t page = tern__page_bytes(), wanted = TERN__MAX(*bytes, (size_t)1);
    *bytes = tern__align_up(wanted, page);
    void *pages = *bytes < wanted ? NULL : tern__alloc_raw(*bytes, page);
    if (pages) return memset(pages, 0, *bytes);
    tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory: %zu bytes", wanted);
    return NULL;
}

/* Allocates one block of samples and one of labels for all slots; each slot's part starts at a cache line. */
static int slots_init(tern_loader *loader, tern_error *err)
{
    int64_t length = tern_sampler_length(loader->sampler), count = loader->opts.batch_size;
    int slots = TERN__MAX(loader->opts.workers, 1) * loader->opts.prefetch + 1;
    if (!loader->stream) count = TERN__MIN(count, length);
    size_t values, targets;
    if (__builtin_mul_overflow((size_t)count, (size_t)loader->sample_values, &values) ||
        values > SIZE_MAX / loader->value_bytes / (size_t)slots - TERN__LINE ||
        __builtin_mul_overflow((size_t)count, loader->target_bytes, &targets) ||
        targets > SIZE_MAX / (size_t)slots - TERN__LINE)
        return tern__error_set(err, FUNC, TERN_E_MEMORY,
                               "%d batches of %lld samples of %lld values are too many", slots,
                               (long long)count, (long long)loader->sample_values);
    loader->x_step = tern__align_up(values * loader->value_bytes, TERN__LINE);
    loader->y_step = tern__align_up(targets, TERN__LINE);
    loader->x_bytes = loader->x_step * (size_t)slots;
    loader->y_bytes = loader->y_step * (size_t)slots;
    loader->slots = tern__alloc(sizeof(tern__loader_slot) * (size_t)slots, FUNC, err);
    loader->x = pages_new(&loader->x_bytes, err);
    loader->y = pages_new(&loader->y_bytes, err);
    if (!loader->slots || !loader->x || !loader->y) return TERN_E_MEMORY;
    loader->slot_count = slots;
    for (int i = 0; i < slots; i++)
        loader->slots[i].batch = (tern__batch){.x = (float *)(loader->x + loader->x_step * (size_t)i),
                                               .y = loader->y + loader->y_step * (size_t)i,
                                               .slot = i};
    return TERN_OK;
}

static int readers_init(tern_loader *loader, tern_error *err)
{
    int count = TERN__MAX(loader->opts.workers, 1);
    loader->readers = tern__alloc(sizeof(*loader->readers) * (size_t)count, FUNC, err);
    if (!loader->readers) return TERN_E_MEMORY;
    loader->reader_count = count;
    loader->patience_s = TERN__PATIENCE_S;
    for (int i = 0; i < count; i++) loader->readers[i] = (tern__reader){.loader = loader, .number = i};
    return TERN_OK;
}

static int workers_start(tern_loader *loader, tern_error *err)
{
    int failed = 0;
    while (!failed && loader->worker_count < loader->opts.workers) {
        tern__reader *reader = &loader->readers[loader->worker_count];
        failed = tern__thread_new(&reader->thread, NULL, tern__loader_work, reader);
        loader->worker_count += !failed;
    }
    errno = failed;
    return failed ? tern__error_errno(err, FUNC, TERN_E_SYSTEM, "cannot start worker %d of %d",
                                      loader->worker_count, loader->opts.workers)
                  : TERN_OK;
}

/* ---- new and free ---- */

tern_loader *tern_loader_new(tern_dataset *dataset, const tern_loader_opts *user, tern_error *err)
{
    tern_loader_opts opts = tern_loader_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err)) return NULL;
    if (loader_check_opts(&opts, err)) return NULL;
    tern_loader *loader = tern__alloc(sizeof(*loader), FUNC, err);
    if (!loader) return NULL;
    *loader = (tern_loader){.dataset = dataset,
                            .stream = dataset && !dataset->get,
                            .opts = opts,
                            .pid = getpid(),
                            .lock = PTHREAD_MUTEX_INITIALIZER,
                            .claimable = PTHREAD_COND_INITIALIZER,
                            .ready = PTHREAD_COND_INITIALIZER};
    if (!measure_samples(loader, dataset, err) && !sampler_init(loader, err) && !slots_init(loader, err) &&
        !readers_init(loader, err) && !workers_start(loader, err))
        return loader;
    tern_loader_free(loader);
    return NULL;
}

static void workers_stop(tern_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    atomic_store(&loader->stopping, true);
    pthread_cond_broadcast(&loader->claimable);
    while (loader->worker_count && tern__loader_slot_in(loader, TERN__FETCHING))
        tern__loader_await_worker(loader, INT64_MAX);
    pthread_mutex_unlock(&loader->lock);
    for (int i = 0; i < loader->worker_count; i++) pthread_join(loader->readers[i].thread, NULL);
    for (int i = 0; i < loader->reader_count; i++) tern__reader_close(&loader->readers[i]);
    tern__dataset_watch_stop(&loader->watch);
}

void tern_loader_free(tern_loader *loader)
{
    if (!loader) return;
    if (tern__loader_is_forked(loader)) {
        if (!tern__loader_slot_in(loader, TERN__HELD)) tern__loader_memory_free(loader);
        return;
    }
    workers_stop(loader);
    pthread_mutex_lock(&loader->lock);
    bool held = tern__loader_slot_in(loader, TERN__HELD) != NULL;
    loader->abandoned = held;
    pthread_mutex_unlock(&loader->lock);
    if (!held) tern__loader_destroy(loader);
}
