/* loader.c - fetches batches ahead of their use.
 *
 * A batch lives in a slot, and a slot is FREE, FETCHING, READY or HELD. Whoever fetches claims the next batch
 * number and a FREE slot for it, fills the slot, and makes it READY; the caller takes batches in the order of
 * their numbers and holds each until its slot is released. Batches are claimed in order, so the one that the
 * caller waits for always has a slot unless the caller holds them all, which is an error. Workers stop at the
 * end of a pass: the next one's order is asked from the sampler when the caller asks for its first batch.
 * Without workers the caller claims and fills one slot at a time. One lock guards the slots' states and the
 * counters; what is in a slot belongs to whoever brought it into its state. */
#include "data/loader.h"

#include "base/base.h"
#include "base/opts.h"
#include "data/sampler.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { MAX_WORKERS = 1024, MAX_PREFETCH = 1024 };

typedef enum slot_state { FREE, FETCHING, READY, HELD } slot_state;

typedef struct loader_slot {
    slot_state state;
    tern__batch batch;
    tern_error error; /* of fetching it */
} loader_slot;

struct tern_loader {
    tern_dataset *dataset;
    tern_sampler *sampler;
    tern_sampler *own_sampler; /* NULL: the caller's */
    tern_loader_opts opts;
    int64_t batches;       /* in a pass that begins at a batch's edge */
    int64_t sample_floats; /* in a sample */
    size_t target_bytes;   /* of a sample */
    int64_t *indices;      /* of this pass, in order */
    int64_t epoch;         /* of this pass */
    bool running;          /* in a pass */
    int64_t start;         /* samples that the next pass leaves out: it was begun before a resume */
    int64_t shift;         /* samples before batch 0 of this pass; < batch_size */
    int64_t pass_batches;  /* number of the batch at which this pass ends       */
    int64_t next_taken;    /* batch number that the caller gets next */
    int64_t waited_ns;     /* for samples, by the caller */

    pthread_mutex_t lock;
    pthread_cond_t claimable; /* a slot or a batch number became free, or stopping */
    pthread_cond_t ready;     /* a slot became READY */
    int64_t next_claimed;     /* batch number that is fetched next; `pass_batches`: none */
    atomic_bool stopping;
    bool abandoned; /* freed while batches are held: the last one given back destroys it */

    loader_slot *slots;
    int slot_count;
    float *x; /* of all slots */
    char *y;  /* of all slots */
    pthread_t *workers;
    int worker_count; /* that run */
};

tern_loader_opts tern_loader_defaults(void)
{
    return (tern_loader_opts){.size = sizeof(tern_loader_opts), .batch_size = 1, .workers = 1, .prefetch = 2};
}

/* ---- fetching ---- */

static int fetch_sample(const tern_loader *loader, int64_t index, float *x, void *y, tern_error *err)
{
    const tern_dataset *dataset = loader->dataset;
    int status = dataset->get(dataset, loader->epoch, index, x, y, err);
    if (status || tern__is_set(err))
        return tern__error_set(err, "tern_loader_next", status < 0 ? status : TERN_E_INVALID,
                               "the dataset's get returned %d", status);
    if (dataset->classes == 0 || dataset->target_ndim > 0) return TERN_OK;
    int64_t label = *(const int64_t *)y;
    if (label < 0 || label >= dataset->classes)
        return tern__error_set(err, "tern_loader_next", TERN_E_RANGE, "label is %lld, expected [0, %d]",
                               (long long)label, dataset->classes - 1);
    return TERN_OK;
}

/* Fills a claimed slot; without the lock. */
static void fetch(const tern_loader *loader, loader_slot *slot)
{
    tern__batch *batch = &slot->batch;
    const int64_t *indices = loader->indices + batch->index * loader->opts.batch_size + loader->shift;
    slot->error = (tern_error){0};
    for (int64_t i = 0; i < batch->count && !atomic_load(&loader->stopping); i++) {
        tern_error why = {0};
        int status = fetch_sample(loader, indices[i], batch->x + i * loader->sample_floats,
                                  (char *)batch->y + (size_t)i * loader->target_bytes, &why);
        if (!status) continue;
        tern__error_set(&slot->error, why.func, why.code, "batch %lld, sample %lld: %s",
                        (long long)batch->index, (long long)indices[i], why.text);
        slot->error.native = why.native;
        return;
    }
}

static loader_slot *slot_in(const tern_loader *loader, slot_state state)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == state) return &loader->slots[i];
    return NULL;
}

/* A slot with the next batch's number and count, to be fetched; NULL if no number or no slot is free. Locked.
 */
static loader_slot *claim(tern_loader *loader)
{
    loader_slot *slot = loader->next_claimed < loader->pass_batches ? slot_in(loader, FREE) : NULL;
    if (!slot) return NULL;
    int64_t left =
        tern_sampler_length(loader->sampler) - loader->shift - loader->next_claimed * loader->opts.batch_size;
    slot->batch.count = TERN__MIN(left, loader->opts.batch_size);
    slot->batch.index = loader->next_claimed++;
    slot->state = FETCHING;
    return slot;
}

static void *work(void *arg)
{
    tern_loader *loader = arg;
    pthread_mutex_lock(&loader->lock);
    while (!atomic_load(&loader->stopping)) {
        loader_slot *slot = claim(loader);
        if (!slot) {
            pthread_cond_wait(&loader->claimable, &loader->lock);
            continue;
        }
        pthread_mutex_unlock(&loader->lock);
        fetch(loader, slot);
        pthread_mutex_lock(&loader->lock);
        slot->state = READY;
        pthread_cond_signal(&loader->ready);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* ---- taking ---- */

static int64_t batches_of(const tern_loader *loader, int64_t samples)
{
    int64_t size = loader->opts.batch_size;
    return samples / size + (!loader->opts.drop_last && samples % size);
}

/* A pass that is taken up at `start` counts its batches as if it had begun with those of that size. */
static int pass_start(tern_loader *loader, tern_error *err)
{
    int status = tern_sampler_indices(loader->sampler, loader->indices, err);
    if (status) return status;
    int64_t size = loader->opts.batch_size;
    loader->epoch = tern_sampler_epoch_get(loader->sampler);
    loader->running = true;
    pthread_mutex_lock(&loader->lock);
    loader->shift = loader->start % size;
    loader->pass_batches = batches_of(loader, tern_sampler_length(loader->sampler) - loader->shift);
    loader->next_taken = TERN__MIN(loader->start / size, loader->pass_batches);
    loader->next_claimed = loader->next_taken;
    loader->start = 0;
    pthread_cond_broadcast(&loader->claimable);
    pthread_mutex_unlock(&loader->lock);
    return TERN_OK;
}

static void pass_end(tern_loader *loader)
{
    loader->running = false;
    tern_sampler_epoch_set(loader->sampler, tern_sampler_epoch_get(loader->sampler) + 1);
}

/* The slot of batch `index`, READY; NULL if it is not fetched yet. Locked. */
static loader_slot *ready_slot(const tern_loader *loader, int64_t index)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == READY && loader->slots[i].batch.index == index)
            return &loader->slots[i];
    return NULL;
}

static bool all_held(const tern_loader *loader)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state != HELD) return false;
    return true;
}

/* The next batch's slot, from a worker or fetched here. Locked; not all slots are held. */
static loader_slot *wait_next(tern_loader *loader)
{
    loader_slot *slot = ready_slot(loader, loader->next_taken);
    if (slot) return slot;
    int64_t started = tern__now_ns();
    if (loader->worker_count == 0) {
        slot = claim(loader);
        fetch(loader, slot);
    }
    while (!slot) {
        pthread_cond_wait(&loader->ready, &loader->lock);
        slot = ready_slot(loader, loader->next_taken);
    }
    loader->waited_ns += tern__now_ns() - started;
    return slot;
}

/* The slot is HELD afterwards, or FREE again if its batch is an error. Locked. */
static int take(tern_loader *loader, loader_slot *slot, tern__batch *out, tern_error *err)
{
    loader->next_taken++;
    if (tern__is_set(&slot->error)) {
        slot->state = FREE;
        pthread_cond_signal(&loader->claimable);
        if (err) *err = slot->error;
        return slot->error.code;
    }
    slot->state = HELD;
    *out = slot->batch;
    return 1;
}

int tern__loader_next(tern_loader *loader, tern__batch *out, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!loader) return tern__error_set(err, "tern_loader_next", TERN_E_INVALID, "the loader is NULL");
    int status = loader->running ? TERN_OK : pass_start(loader, err);
    if (status) return status;
    if (loader->next_taken == loader->pass_batches) {
        pass_end(loader);
        return 0;
    }
    pthread_mutex_lock(&loader->lock);
    loader_slot *slot = all_held(loader) ? NULL : wait_next(loader);
    status = slot ? take(loader, slot, out, err)
                  : tern__error_set(
                        err, "tern_loader_next", TERN_E_STATE,
                        "all %d batches that the loader has room for are held: end their scope, or raise "
                        "prefetch from %d",
                        loader->slot_count, loader->opts.prefetch);
    pthread_mutex_unlock(&loader->lock);
    return status;
}

static void destroy(tern_loader *loader)
{
    pthread_cond_destroy(&loader->claimable);
    pthread_cond_destroy(&loader->ready);
    pthread_mutex_destroy(&loader->lock);
    tern_sampler_free(loader->own_sampler);
    tern__free(loader->indices);
    tern__free(loader->slots);
    tern__free(loader->x);
    tern__free(loader->y);
    tern__free(loader->workers);
    tern__free(loader);
}

void tern__loader_slot_release(tern_loader *loader, int slot)
{
    pthread_mutex_lock(&loader->lock);
    loader->slots[slot].state = FREE;
    bool last = loader->abandoned && !slot_in(loader, HELD);
    pthread_cond_signal(&loader->claimable);
    pthread_mutex_unlock(&loader->lock);
    if (last) destroy(loader);
}

/* ---- its place ---- */

tern__loader_place tern__loader_place_get(const tern_loader *loader)
{
    int64_t length = tern_sampler_length(loader->sampler);
    int64_t taken = loader->next_taken * loader->opts.batch_size + loader->shift;
    if (loader->running) return (tern__loader_place){loader->epoch, TERN__MIN(taken, length)};
    return (tern__loader_place){tern_sampler_epoch_get(loader->sampler), loader->start};
}

/* What was fetched ahead is forgotten. */
static void pass_abandon(tern_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->next_claimed = loader->pass_batches;
    while (slot_in(loader, FETCHING)) pthread_cond_wait(&loader->ready, &loader->lock);
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == READY) loader->slots[i].state = FREE;
    pthread_mutex_unlock(&loader->lock);
    loader->running = false;
}

void tern__loader_place_set(tern_loader *loader, tern__loader_place place)
{
    if (loader->running) pass_abandon(loader);
    loader->start = TERN__MIN(place.samples, tern_sampler_length(loader->sampler));
    tern_sampler_epoch_set(loader->sampler, place.epoch);
}

tern_sampler *tern__loader_sampler(const tern_loader *loader)
{
    return loader->sampler;
}

const tern_dataset *tern__loader_dataset(const tern_loader *loader)
{
    return loader->dataset;
}

double tern_loader_waited(const tern_loader *loader)
{
    return loader ? 1e-9 * (double)loader->waited_ns : 0;
}

int64_t tern_loader_length(const tern_loader *loader)
{
    return loader ? loader->batches : 0;
}

/* ---- making and freeing ---- */

static const char FUNC[] = "tern_loader_new";

static int check_opts(const tern_loader_opts *opts, tern_error *err)
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
    return TERN_OK;
}

/* The elements of a shape; `name` is the field's. */
static int count_elements(const char *name, int ndim, const int64_t *shape, int64_t *count, tern_error *err)
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

/* Fills in how much of each sample there is. */
static int measure_samples(tern_loader *loader, const tern_dataset *dataset, tern_error *err)
{
    int64_t values;
    if (!dataset || !dataset->get || dataset->length < 0 || !has_dimensions(dataset->ndim) ||
        !has_dimensions(dataset->target_ndim))
        return tern__error_set(err, FUNC, TERN_E_INVALID,
                               "expected a dataset with get, a length of at least 0 and samples and targets "
                               "of at most 4 dimensions");
    if (count_elements("shape", dataset->ndim, dataset->shape, &loader->sample_floats, err) ||
        count_elements("target_shape", dataset->target_ndim, dataset->target_shape, &values, err))
        return TERN_E_INVALID;
    size_t bytes = tern_dtype_bytes(tern__target_dtype(dataset));
    if (bytes == 0 || __builtin_mul_overflow((size_t)values, bytes, &loader->target_bytes))
        return tern__error_set(err, FUNC, TERN_E_INVALID, "the dataset's target_dtype is %d, of %lld values",
                               dataset->target_dtype, (long long)values);
    return TERN_OK;
}

static int sampler_init(tern_loader *loader, tern_error *err)
{
    const tern_loader_opts *opts = &loader->opts;
    int64_t n = loader->dataset->length;
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
    loader->batches = batches_of(loader, length);
    loader->indices = tern__alloc((size_t)length * sizeof(int64_t), FUNC, err);
    return loader->indices ? TERN_OK : TERN_E_MEMORY;
}

/* One block of samples and one of labels for all slots; each slot's part starts at a multiple of a cache
 * line. */
static int slots_init(tern_loader *loader, tern_error *err)
{
    int64_t length = tern_sampler_length(loader->sampler), count = TERN__MIN(loader->opts.batch_size, length);
    int slots = TERN__MAX(loader->opts.workers, 1) * loader->opts.prefetch + 1;
    size_t floats, targets;
    if (__builtin_mul_overflow((size_t)count, (size_t)loader->sample_floats, &floats) ||
        floats > SIZE_MAX / sizeof(float) / (size_t)slots - TERN__LINE ||
        __builtin_mul_overflow((size_t)count, loader->target_bytes, &targets) ||
        targets > SIZE_MAX / (size_t)slots - TERN__LINE)
        return tern__error_set(err, FUNC, TERN_E_MEMORY,
                               "%d batches of %lld samples of %lld values are too many", slots,
                               (long long)count, (long long)loader->sample_floats);
    floats = tern__align_up(floats, TERN__LINE / sizeof(float));
    targets = tern__align_up(targets, TERN__LINE);
    loader->slots = tern__alloc(sizeof(loader_slot) * (size_t)slots, FUNC, err);
    loader->x = tern__alloc(floats * sizeof(float) * (size_t)slots, FUNC, err);
    loader->y = tern__alloc(targets * (size_t)slots, FUNC, err);
    if (!loader->slots || !loader->x || !loader->y) return TERN_E_MEMORY;
    loader->slot_count = slots;
    for (int i = 0; i < slots; i++)
        loader->slots[i].batch = (tern__batch){
            .x = loader->x + floats * (size_t)i, .y = loader->y + targets * (size_t)i, .slot = i};
    return TERN_OK;
}

/* With all signals blocked, so that they go to the threads of the program. */
static int workers_start(tern_loader *loader, tern_error *err)
{
    if (loader->opts.workers == 0) return TERN_OK;
    loader->workers = tern__alloc(sizeof(pthread_t) * (size_t)loader->opts.workers, FUNC, err);
    if (!loader->workers) return TERN_E_MEMORY;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    while (!failed && loader->worker_count < loader->opts.workers) {
        failed = pthread_create(&loader->workers[loader->worker_count], NULL, work, loader);
        loader->worker_count += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    return failed ? tern__error_errno(err, FUNC, TERN_E_SYSTEM, "cannot start worker %d of %d",
                                      loader->worker_count, loader->opts.workers)
                  : TERN_OK;
}

tern_loader *tern_loader_new(tern_dataset *dataset, const tern_loader_opts *user, tern_error *err)
{
    tern_loader_opts opts = tern_loader_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, FUNC, err)) return NULL;
    if (check_opts(&opts, err)) return NULL;
    tern_loader *loader = tern__alloc(sizeof(*loader), FUNC, err);
    if (!loader) return NULL;
    *loader = (tern_loader){.dataset = dataset,
                            .opts = opts,
                            .lock = PTHREAD_MUTEX_INITIALIZER,
                            .claimable = PTHREAD_COND_INITIALIZER,
                            .ready = PTHREAD_COND_INITIALIZER};
    if (!measure_samples(loader, dataset, err) && !sampler_init(loader, err) && !slots_init(loader, err) &&
        !workers_start(loader, err))
        return loader;
    tern_loader_free(loader);
    return NULL;
}

static void workers_stop(tern_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    atomic_store(&loader->stopping, true);
    pthread_cond_broadcast(&loader->claimable);
    pthread_mutex_unlock(&loader->lock);
    for (int i = 0; i < loader->worker_count; i++) pthread_join(loader->workers[i], NULL);
}

void tern_loader_free(tern_loader *loader)
{
    if (!loader) return;
    workers_stop(loader);
    pthread_mutex_lock(&loader->lock);
    bool held = slot_in(loader, HELD) != NULL;
    loader->abandoned = held;
    pthread_mutex_unlock(&loader->lock);
    if (!held) destroy(loader);
}
