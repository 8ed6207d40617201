/* test_loader.c - the loader on plain buffers: order, workers, errors, freeing and memory. */
#include "cpus.h"

#include "base/base.h"
#include "data/loader/loader_inner.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Sample i of a counting dataset is (2, 3) values 10 i .. 10 i + 5 and label i, so a batch shows which
 * samples it has. */
enum { VALUES = 6, DEADLINE_S = 20 };

typedef struct counting {
    tern_dataset base;
    int64_t fails_at; /* index of a sample that fails; -1: none                           */
    int64_t waits_at; /* this sample waits until `goes_at` has been fetched; -1: none does */
    int64_t goes_at;
    sem_t gone;
    atomic_int fetched;
    atomic_bool signals_open; /* a fetching thread did not block SIGTERM             */
    atomic_bool is_bound;     /* or could not use all of the process's CPUs          */
} counting;

static int counting_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                        tern_error *err)
{
    (void)epoch;
    counting *dataset = (counting *)base;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!sigismember(&blocked, SIGTERM)) atomic_store(&dataset->signals_open, true);
    if (!cpus_are_all(0)) atomic_store(&dataset->is_bound, true);
    if (index == dataset->fails_at) return tern__error_set(err, "counting", TERN_E_IO, "it is torn");
    if (index == dataset->waits_at) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += DEADLINE_S;
        if (sem_timedwait(&dataset->gone, &until))
            return tern__error_set(err, "counting", TERN_E_TIMEOUT, "no other worker came along");
    }
    for (int i = 0; i < VALUES; i++) x[i] = (float)(10 * index + i);
    *(int64_t *)y = index;
    atomic_fetch_add(&dataset->fetched, 1);
    if (index == dataset->goes_at) sem_post(&dataset->gone);
    return TERN_OK;
}

static void counting_init(counting *dataset, int64_t length)
{
    memset(dataset, 0, sizeof(*dataset));
    dataset->base = (tern_dataset){.length = length, .ndim = 2, .shape = {2, 3}, .get = counting_get};
    dataset->fails_at = dataset->waits_at = dataset->goes_at = -1;
    sem_init(&dataset->gone, 0, 0);
}

static tern_loader *loader_new(counting *dataset, const tern_loader_opts *opts)
{
    tern_error err = {0};
    tern_loader *loader = tern_loader_new(&dataset->base, opts, &err);
    assert_ok(err);
    return loader;
}

static void expect_batch(const tern__batch *batch, const int64_t *indices)
{
    assert_int_equal((uintptr_t)batch->x % 64, 0);
    assert_int_equal((uintptr_t)batch->y % 64, 0);
    for (int64_t i = 0; i < batch->count; i++) {
        assert_int_equal(((int64_t *)batch->y)[i], indices[i]);
        for (int j = 0; j < VALUES; j++)
            assert_true(batch->x[i * VALUES + j] == (float)(10 * indices[i] + j));
    }
}

/* Expects one pass: batches 0, 1, .. of `batch_size` with exactly the samples `indices`. */
static void expect_pass(tern_loader *loader, int64_t batch_size, const int64_t *indices, int64_t count)
{
    tern_error err = {0};
    tern__batch batch;
    int64_t seen = 0, number = 0;
    while (tern__loader_next(loader, &batch, &err) == 1) {
        assert_int_equal(batch.index, number++);
        assert_int_equal(batch.count, TERN__MIN(batch_size, count - seen));
        expect_batch(&batch, indices + seen);
        seen += batch.count;
        tern__loader_slot_release(loader, batch.slot);
    }
    assert_ok(err);
    assert_int_equal(seen, count);
    assert_int_equal(number, tern_loader_length(loader));
}

static const int WORKERS[] = {0, 1, 2, 4};

static void order_is_the_samplers_for_any_number_of_workers(void **state)
{
    (void)state;
    enum { N = 1003 };
    int64_t want[3][N];
    tern_sampler *oracle = tern_random_sampler_new(N, 5, NULL);
    for (int epoch = 0; epoch < 3; epoch++) {
        tern_sampler_epoch_set(oracle, epoch);
        tern_sampler_indices(oracle, want[epoch], NULL);
    }
    tern_sampler_free(oracle);
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        counting dataset;
        counting_init(&dataset, N);
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 8;
        opts.workers = WORKERS[w];
        opts.shuffle = true;
        opts.seed = 5;
        tern_loader *loader = loader_new(&dataset, &opts);
        assert_int_equal(tern_loader_length(loader), 126);
        for (int epoch = 0; epoch < 3; epoch++) expect_pass(loader, 8, want[epoch], N);
        tern_loader_free(loader);
        assert_int_equal(atomic_load(&dataset.fetched), 3 * N);
        if (WORKERS[w] == 0) continue;
        assert_false(atomic_load(&dataset.signals_open));
        assert_false(atomic_load(&dataset.is_bound));
    }
}

/* Batch 0 cannot be fetched before batch 1: with two workers, 0 still comes first. */
static void a_later_batch_that_is_ready_first_waits_for_its_turn(void **state)
{
    (void)state;
    static const int64_t indices[] = {0, 1, 2, 3, 4, 5};
    counting dataset;
    counting_init(&dataset, 6);
    dataset.waits_at = 0;
    dataset.goes_at = 3;
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 2;
    opts.workers = 2;
    tern_loader *loader = loader_new(&dataset, &opts);
    expect_pass(loader, 2, indices, 6);
    tern_loader_free(loader);
}

static void each_rank_gets_its_share(void **state)
{
    (void)state;
    int seen[10] = {0};
    tern_distributed_opts share = tern_distributed_defaults();
    share.pad = false;
    for (int rank = 0; rank < 3; rank++) {
        counting dataset;
        counting_init(&dataset, 10);
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 3;
        opts.sampler = tern_distributed_sampler_new(10, 3, rank, &share, NULL);
        tern_loader *loader = loader_new(&dataset, &opts);
        assert_int_equal(tern_loader_length(loader), rank == 0 ? 2 : 1);
        tern__batch batch;
        while (tern__loader_next(loader, &batch, NULL) == 1) {
            for (int64_t i = 0; i < batch.count; i++) seen[((int64_t *)batch.y)[i]]++;
            tern__loader_slot_release(loader, batch.slot);
        }
        assert_int_equal(tern_sampler_epoch_get(opts.sampler), 1);
        tern_loader_free(loader);
        tern_sampler_free(opts.sampler);
    }
    for (int i = 0; i < 10; i++) assert_int_equal(seen[i], 1);
}

static void the_epoch_advances_and_can_be_set_between_passes(void **state)
{
    (void)state;
    enum { N = 40 };
    int64_t want[N];
    counting dataset;
    counting_init(&dataset, N);
    tern_sampler *sampler = tern_random_sampler_new(N, 2, NULL);
    tern_sampler *oracle = tern_random_sampler_new(N, 2, NULL);
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 16;
    opts.sampler = sampler;
    tern_loader *loader = loader_new(&dataset, &opts);
    static const int64_t epochs[] = {0, 1, 7, 8};
    for (int pass = 0; pass < 4; pass++) {
        if (pass == 2) tern_sampler_epoch_set(sampler, 7);
        tern_sampler_epoch_set(oracle, epochs[pass]);
        tern_sampler_indices(oracle, want, NULL);
        expect_pass(loader, 16, want, N);
        assert_int_equal(tern_sampler_epoch_get(sampler), epochs[pass] + 1);
    }
    tern_loader_free(loader);
    tern_sampler_free(oracle);
    tern_sampler_free(sampler);
}

static void a_last_batch_is_short_or_dropped(void **state)
{
    (void)state;
    static const int64_t indices[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const struct {
        int64_t length, batch_size, batches, samples;
        bool drop_last;
    } cases[] = {
        {10, 4, 3, 10, false}, {10, 4, 2, 8, true}, {8, 4, 2, 8, true},          {3, 4, 1, 3, false},
        {3, 4, 0, 0, true},    {0, 4, 0, 0, false}, {3, INT64_MAX, 1, 3, false},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        counting dataset;
        counting_init(&dataset, cases[i].length);
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = cases[i].batch_size;
        opts.drop_last = cases[i].drop_last;
        tern_loader *loader = loader_new(&dataset, &opts);
        assert_int_equal(tern_loader_length(loader), cases[i].batches);
        expect_pass(loader, cases[i].batch_size, indices, cases[i].samples);
        expect_pass(loader, cases[i].batch_size, indices, cases[i].samples);
        tern_loader_free(loader);
    }
}

static void expect_torn(tern_loader *loader)
{
    tern_error err = {0};
    tern__batch batch;
    assert_int_equal(tern__loader_next(loader, &batch, &err), TERN_E_IO);
    assert_int_equal(err.code, TERN_E_IO);
    assert_string_equal(err.func, "counting");
    assert_string_equal(err.text, "batch 2, sample 9: it is torn");
    assert_int_equal(tern__loader_next(loader, &batch, &err), TERN_E_IO); /* an error that is set is kept */
}

/* The error comes in the place of its batch and names batch and sample, and the pass continues after it. More
 * passes than slots show that no slot is lost. */
static void a_samples_error_comes_at_its_batch(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        counting dataset;
        counting_init(&dataset, 20);
        dataset.fails_at = 9;
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 4;
        opts.workers = WORKERS[w];
        tern_loader *loader = loader_new(&dataset, &opts);
        for (int pass = 0; pass < 12; pass++) {
            for (int i = 0; i < 5; i++) {
                tern__batch batch = {.index = -1};
                if (i == 2) {
                    expect_torn(loader);
                    continue;
                }
                assert_int_equal(tern__loader_next(loader, &batch, NULL), 1);
                assert_int_equal(batch.index, i);
                tern__loader_slot_release(loader, batch.slot);
            }
            assert_int_equal(tern__loader_next(loader, &(tern__batch){0}, NULL), 0);
        }
        tern_loader_free(loader);
    }
}

static int silent_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                      tern_error *err)
{
    (void)base, (void)epoch, (void)index, (void)x, (void)y, (void)err;
    return 3;
}

/* If every sample fails, every batch comes with its error. */
static void nothing_but_errors(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        counting dataset;
        counting_init(&dataset, 40);
        dataset.base.get = silent_get;
        tern_loader_opts opts = tern_loader_defaults();
        opts.workers = WORKERS[w];
        tern_loader *loader = loader_new(&dataset, &opts);
        for (int i = 0; i < 40; i++) {
            tern_error err = {0};
            char text[96];
            snprintf(text, sizeof(text), "batch %d, sample %d: the dataset's get returned 3", i, i);
            assert_int_equal(tern__loader_next(loader, &(tern__batch){0}, &err), TERN_E_INVALID);
            assert_int_equal(err.code, TERN_E_INVALID);
            assert_string_equal(err.text, text);
        }
        assert_int_equal(tern__loader_next(loader, &(tern__batch){0}, NULL), 0);
        tern_loader_free(loader);
    }
}

static void label_10_of_10_classes_is_an_error(void **state)
{
    (void)state;
    counting dataset;
    counting_init(&dataset, 11);
    dataset.base.classes = 10;
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 11;
    tern_error err = {0};
    tern_loader *loader = loader_new(&dataset, &opts);
    assert_int_equal(tern__loader_next(loader, &(tern__batch){0}, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "batch 0, sample 10: label is 10, expected [0, 9]");
    tern_loader_free(loader);
}

static void holding_every_batch_is_an_error_until_one_is_released(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        counting dataset;
        counting_init(&dataset, 100);
        tern_loader_opts opts = tern_loader_defaults();
        opts.workers = WORKERS[w];
        tern_loader *loader = loader_new(&dataset, &opts);
        int room = TERN__MAX(WORKERS[w], 1) * opts.prefetch + 1;
        tern__batch held[16], batch;
        for (int i = 0; i < room; i++) assert_int_equal(tern__loader_next(loader, &held[i], NULL), 1);
        for (int64_t i = 0; i < room; i++) expect_batch(&held[i], &i); /* no held batch was overwritten */
        tern_error err = {0};
        assert_int_equal(tern__loader_next(loader, &batch, &err), TERN_E_STATE);
        assert_non_null(strstr(err.text, "prefetch from 2"));
        tern__loader_slot_release(loader, held[1].slot);
        assert_int_equal(tern__loader_next(loader, &batch, NULL), 1);
        expect_batch(&batch, &(int64_t){room});
        assert_int_equal(batch.slot, held[1].slot);
        for (int i = 0; i < room; i++) tern__loader_slot_release(loader, held[i].slot);
        tern_loader_free(loader);
    }
}

/* Frees the loader right after it was made, within a pass while batches are being fetched, and while some are
 * held: these stay valid until they are given back. */
static void freeing_early_is_clean(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++)
        for (int taken = 0; taken < 4; taken++) {
            counting dataset;
            counting_init(&dataset, 1000);
            tern_loader_opts opts = tern_loader_defaults();
            opts.batch_size = 16;
            opts.workers = WORKERS[w];
            tern_loader *loader = loader_new(&dataset, &opts);
            tern__batch held[4];
            for (int i = 0; i < taken; i++) assert_int_equal(tern__loader_next(loader, &held[i], NULL), 1);
            tern_loader_free(loader);
            assert_true(atomic_load(&dataset.fetched) >= taken * 16);
            for (int i = 0; i < taken; i++) {
                assert_int_equal(((int64_t *)held[i].y)[15], 16 * i + 15);
                tern__loader_slot_release(loader, held[i].slot);
            }
        }
    tern_loader_free(NULL);
    assert_int_equal(tern_loader_length(NULL), 0);
    assert_int_equal(tern__loader_next(NULL, &(tern__batch){0}, NULL), TERN_E_INVALID);
}

/* Runs in the child, which has the loader but none of its workers. */
static int use_in_child(tern_loader *loader)
{
    tern_error err = {0};
    tern__batch batch;
    char text[128];
    snprintf(text, sizeof(text), "belongs to process %d, this is its forked child %d", (int)getppid(),
             (int)getpid());
    if (tern__loader_next(loader, &batch, &err) != TERN_E_FORKED || !strstr(err.text, text)) return 1;
    tern_loader_free(loader);
    return 0;
}

static void a_forked_child_is_told_so(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        counting dataset;
        counting_init(&dataset, 100);
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 8;
        opts.workers = WORKERS[w];
        tern_loader *loader = loader_new(&dataset, &opts);
        tern__batch batch;
        assert_int_equal(tern__loader_next(loader, &batch, NULL), 1);
        tern__loader_slot_release(loader, batch.slot);
        pid_t child = fork();
        if (child == 0) {
            alarm(DEADLINE_S);
            _exit(use_in_child(loader));
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        assert_int_equal(tern__loader_next(loader, &batch, NULL), 1);
        tern_loader_free(loader);
        tern__loader_slot_release(loader, batch.slot);
    }
}

/* Takes at least a millisecond. */
static int slow_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                    tern_error *err)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return counting_get(base, epoch, index, x, y, err);
}

static void waiting_is_counted(void **state)
{
    (void)state;
    for (int workers = 0; workers < 2; workers++) {
        counting dataset;
        tern_loader_opts opts = tern_loader_defaults();
        counting_init(&dataset, 20);
        dataset.base.get = slow_get;
        opts.batch_size = 5;
        opts.workers = workers;
        tern_loader *loader = tern_loader_new(&dataset.base, &opts, NULL);
        assert_true(tern_loader_waited(loader) == 0);
        int64_t started = tern__now_ns();
        tern__batch batch;
        while (tern__loader_next(loader, &batch, NULL) == 1) tern__loader_slot_release(loader, batch.slot);
        double took = 1e-9 * (double)(tern__now_ns() - started), waited = tern_loader_waited(loader);
        assert_true(waited >= (workers ? 0.001 : 0.02) && waited <= took);
        tern_loader_free(loader);
    }
    assert_true(tern_loader_waited(NULL) == 0);
}

static void expect_refused(tern_dataset *dataset, const tern_loader_opts *opts, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_loader_new(dataset, opts, &err));
    assert_string_equal(tern_status_name(err.code), tern_status_name(code));
    if (!strstr(err.text, text)) fail_msg("expected \"%s\" in: %s", text, err.text);
    assert_string_equal(err.func, "tern_loader_new");
    assert_null(tern_loader_new(dataset, NULL, &err)); /* an error that is set is kept */
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    counting dataset;
    counting_init(&dataset, 10);
    tern_sampler *sampler = tern_sequential_sampler_new(10, NULL),
                 *longer = tern_sequential_sampler_new(11, NULL);
#define REFUSED(code, text, ...)                                                                             \
    do {                                                                                                     \
        tern_loader_opts opts = tern_loader_defaults();                                                      \
        __VA_ARGS__;                                                                                         \
        expect_refused(&dataset.base, &opts, code, text);                                                    \
    } while (0)
    REFUSED(TERN_E_INVALID, "shuffle and a sampler", opts.shuffle = true, opts.sampler = sampler);
    REFUSED(TERN_E_INVALID, "batch_size is 0", opts.batch_size = 0);
    REFUSED(TERN_E_RANGE, "workers is -1", opts.workers = -1);
    REFUSED(TERN_E_RANGE, "workers is 1025", opts.workers = 1025);
    REFUSED(TERN_E_RANGE, "prefetch is 0", opts.prefetch = 0);
    REFUSED(TERN_E_RANGE, "the sampler is for 11 samples, the dataset has 10", opts.sampler = longer);
    REFUSED(TERN_E_INVALID, "size is 0", opts.size = 0);
#undef REFUSED
    expect_refused(NULL, NULL, TERN_E_INVALID, "expected a dataset");
    dataset.base.shape[1] = 0;
    expect_refused(&dataset.base, NULL, TERN_E_INVALID, "shape[1] is 0");
    dataset.base.shape[0] = dataset.base.shape[1] = INT64_MAX;
    expect_refused(&dataset.base, NULL, TERN_E_INVALID, "shape[1] is 9223372036854775807");
    dataset.base.shape[0] = dataset.base.shape[1] = 1;
    dataset.base.target_ndim = 5;
    expect_refused(&dataset.base, NULL, TERN_E_INVALID, "targets of at most 4 dimensions");
    dataset.base.target_ndim = 1;
    expect_refused(&dataset.base, NULL, TERN_E_INVALID, "target_shape[0] is 0");
    dataset.base.target_shape[0] = 1;
    dataset.base.target_dtype = (tern_dtype)99;
    expect_refused(&dataset.base, NULL, TERN_E_INVALID, "target_dtype is 99");
    dataset.base.target_dtype = TERN_U8;
    dataset.base.dtype = (tern_dtype)99;
    expect_refused(&dataset.base, NULL, TERN_E_INVALID, "the dataset's dtype is 99");
    dataset.base.dtype = TERN_F32;
    dataset.base.target_ndim = 0;
    dataset.base.shape[0] = INT64_MAX;
    dataset.base.shape[1] = 1;
    expect_refused(&dataset.base, NULL, TERN_E_MEMORY, "too many");
    tern_sampler_free(longer);
    tern_sampler_free(sampler);
}

/* Counts allocations, and fails after `left` of them. */
typedef struct scarce {
    atomic_int left, live, calls;
} scarce;

static void *scarce_alloc(size_t bytes, size_t align, void *ctx)
{
    scarce *memory = ctx;
    atomic_fetch_add(&memory->calls, 1);
    if (atomic_fetch_sub(&memory->left, 1) <= 0) return NULL;
    atomic_fetch_add(&memory->live, 1);
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void scarce_free(void *ptr, void *ctx)
{
    atomic_fetch_sub(&((scarce *)ctx)->live, 1);
    free(ptr);
}

static void all_memory_is_taken_when_it_is_made(void **state)
{
    (void)state;
    scarce memory = {.left = 1000};
    tern__allocator_replace(&(tern_allocator){scarce_alloc, scarce_free, &memory});
    counting dataset;
    counting_init(&dataset, 50);
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 7;
    opts.workers = 2;
    opts.shuffle = true;
    tern_loader *loader = loader_new(&dataset, &opts);
    int calls = atomic_load(&memory.calls);
    tern__batch batch;
    for (int pass = 0; pass < 3; pass++)
        while (tern__loader_next(loader, &batch, NULL) == 1) tern__loader_slot_release(loader, batch.slot);
    assert_int_equal(atomic_load(&memory.calls), calls);
    tern_loader_free(loader);
    tern__allocator_replace(NULL);
    assert_int_equal(atomic_load(&memory.live), 0);
}

static void no_memory_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    counting dataset;
    counting_init(&dataset, 50);
    tern_loader_opts opts = tern_loader_defaults();
    opts.shuffle = true;
    tern_loader *loader = NULL;
    scarce memory = {0};
    int failures = 0;
    tern__allocator_replace(&(tern_allocator){scarce_alloc, scarce_free, &memory});
    for (;; failures++) {
        tern_error err = {0};
        atomic_store(&memory.left, failures);
        loader = tern_loader_new(&dataset.base, &opts, &err);
        if (loader) break;
        assert_int_equal(err.code, TERN_E_MEMORY);
        assert_int_equal(atomic_load(&memory.live), 0);
    }
    assert_true(failures >= 8); /* loader; sampler, rng, order; indices; slots, x, y; workers */
    tern_loader_free(loader);
    tern__allocator_replace(NULL);
    assert_int_equal(atomic_load(&memory.live), 0);
}

/* ---- a get that crashes or hangs ---- */

typedef struct crashing {
    tern_dataset base;
    int signal;            /* 0: a write to memory that may not be written */
    volatile int *nowhere; /* such memory                                  */
} crashing;

static int crashing_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                        tern_error *err)
{
    (void)epoch;
    (void)index;
    (void)err;
    const crashing *dataset = (const crashing *)base;
    if (dataset->signal)
        raise(dataset->signal);
    else
        *dataset->nowhere = 1;
    memset(x, 0, VALUES * sizeof(*x));
    *(int64_t *)y = 0;
    return TERN_OK;
}

static void leave_by_handler(int number)
{
    _exit(100 + number);
}

/* The program's handler gets it, and raise and abort are not swallowed. */
static void a_crash_in_get_reaches_the_handler(void **state)
{
    (void)state;
    static const int crashes[] = {0, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < TERN__COUNT(crashes); i++) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            tern_error err = {0};
            tern__batch batch;
            void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            crashing dataset = {
                {.length = 4, .ndim = 2, .shape = {2, 3}, .get = crashing_get}, crashes[i], nowhere};
            tern_loader_opts opts = tern_loader_defaults();
            opts.workers = 2;
            for (size_t k = 1; k < TERN__COUNT(crashes); k++) signal(crashes[k], leave_by_handler);
            tern_loader *loader = tern_loader_new(&dataset.base, &opts, &err);
            tern__loader_next(loader, &batch, &err);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 100 + (crashes[i] ? crashes[i] : SIGSEGV));
    }
}

static char slow_text[256];
static int slow_times;

static void free_the_sample(tern_log_level level, const char *text, void *gone)
{
    if (level != TERN_LOG_WARN) return;
    slow_times++;
    snprintf(slow_text, sizeof(slow_text), "%s", text);
    sem_post(gone);
}

static void a_get_that_hangs_names_its_sample(void **state)
{
    (void)state;
    static const int64_t indices[] = {0, 1, 2, 3, 4, 5};
    for (int workers = 0; workers <= 3; workers++) {
        counting dataset;
        counting_init(&dataset, 6);
        dataset.waits_at = 3;
        slow_times = 0;
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 2;
        opts.workers = workers;
        tern_loader *loader = loader_new(&dataset, &opts);
        loader->patience_s = 0.05;
        tern_log_set(free_the_sample, &dataset.gone);
        expect_pass(loader, 2, indices, 6);
        tern_log_set(NULL, NULL);
        assert_int_equal(slow_times, 1);
        assert_string_equal(
            slow_text, "no batch came for 0.05 s: the dataset's get has not returned sample 3 of batch 1");
        tern_loader_free(loader);
    }
}

static void freeing_names_what_hangs(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 2; workers++) {
        counting dataset;
        counting_init(&dataset, 6);
        dataset.waits_at = 1;
        slow_times = 0;
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 2;
        opts.workers = workers;
        tern_loader *loader = loader_new(&dataset, &opts);
        loader->patience_s = 0.05;
        assert_int_equal(tern_loader_wait(loader, 0, NULL), 0);
        while (atomic_load(&dataset.fetched) < 1) sched_yield();
        tern_log_set(free_the_sample, &dataset.gone);
        tern_loader_free(loader);
        tern_log_set(NULL, NULL);
        assert_int_equal(slow_times, 1);
        assert_string_equal(
            slow_text, "no batch came for 0.05 s: the dataset's get has not returned sample 1 of batch 0");
    }
}

/* The time without a batch counts over waits that are shorter than the patience. */
static void a_wait_ends_and_takes_nothing(void **state)
{
    (void)state;
    static const int64_t indices[] = {0, 1, 2, 3, 4, 5};
    for (int workers = 0; workers <= 3; workers++) {
        tern_error err = {0};
        counting dataset;
        counting_init(&dataset, 6);
        dataset.waits_at = workers ? 0 : -1;
        slow_times = 0;
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 2;
        opts.workers = workers;
        tern_loader *loader = loader_new(&dataset, &opts);
        loader->patience_s = 0.1;
        tern_log_set(free_the_sample, &dataset.gone);
        int waits = 0;
        while (tern_loader_wait(loader, 0.02, &err) == 0) waits++;
        assert_in_range(waits, workers ? 4 : 0, workers ? 1000 : 0);
        assert_int_equal(slow_times, workers ? 1 : 0);
        tern_log_set(NULL, NULL);
        if (workers) assert_true(tern_loader_waited(loader) >= 0.08);
        for (int pass = 0; pass < 2; pass++) {
            assert_int_equal(tern_loader_wait(loader, INFINITY, &err), 1);
            expect_pass(loader, 2, indices, 6);
            if (dataset.waits_at >= 0) sem_post(&dataset.gone);
        }
        assert_int_equal(tern_loader_wait(loader, -1, &err), TERN_E_RANGE);
        assert_int_equal(tern_loader_wait(loader, 0, &err), TERN_E_RANGE);
        err = (tern_error){0};
        assert_int_equal(tern_loader_wait(loader, NAN, &err), TERN_E_RANGE);
        tern_loader_free(loader);
    }
    assert_int_equal(tern_loader_wait(NULL, 0, NULL), TERN_E_INVALID);
}

/* A batch that failed, a pass that has ended, and a loader whose room is used up all need no wait. */
static void a_wait_returns_where_next_would(void **state)
{
    (void)state;
    tern_error err = {0};
    tern__batch batch;
    counting dataset;
    counting_init(&dataset, 4);
    dataset.fails_at = 0;
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 2;
    opts.prefetch = 1;
    tern_loader *loader = loader_new(&dataset, &opts);
    assert_int_equal(tern_loader_wait(loader, DEADLINE_S, &err), 1);
    assert_int_equal(tern__loader_next(loader, &batch, NULL), TERN_E_IO);
    assert_int_equal(tern_loader_wait(loader, DEADLINE_S, &err), 1);
    assert_int_equal(tern__loader_next(loader, &batch, &err), 1);
    tern__loader_slot_release(loader, batch.slot);
    assert_int_equal(tern_loader_wait(loader, DEADLINE_S, &err), 1);
    assert_int_equal(tern__loader_next(loader, &batch, &err), 0);
    tern_loader_free(loader);
    dataset.fails_at = -1;
    dataset.base.length = 10;
    loader = loader_new(&dataset, &opts); /* two slots */
    for (int i = 0; i < 2; i++) assert_int_equal(tern__loader_next(loader, &batch, &err), 1);
    assert_int_equal(tern_loader_wait(loader, DEADLINE_S, &err), 1);
    assert_int_equal(tern__loader_next(loader, &batch, NULL), TERN_E_STATE);
    for (int i = 0; i < 2; i++) tern__loader_slot_release(loader, i);
    assert_ok(err);
    tern_loader_free(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_in_get_reaches_the_handler),
        cmocka_unit_test(a_get_that_hangs_names_its_sample),
        cmocka_unit_test(freeing_names_what_hangs),
        cmocka_unit_test(a_wait_ends_and_takes_nothing),
        cmocka_unit_test(a_wait_returns_where_next_would),
        cmocka_unit_test(order_is_the_samplers_for_any_number_of_workers),
        cmocka_unit_test(a_later_batch_that_is_ready_first_waits_for_its_turn),
        cmocka_unit_test(each_rank_gets_its_share),
        cmocka_unit_test(the_epoch_advances_and_can_be_set_between_passes),
        cmocka_unit_test(a_last_batch_is_short_or_dropped),
        cmocka_unit_test(a_samples_error_comes_at_its_batch),
        cmocka_unit_test(nothing_but_errors),
        cmocka_unit_test(label_10_of_10_classes_is_an_error),
        cmocka_unit_test(holding_every_batch_is_an_error_until_one_is_released),
        cmocka_unit_test(waiting_is_counted),
        cmocka_unit_test(freeing_early_is_clean),
        cmocka_unit_test(a_forked_child_is_told_so),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(all_memory_is_taken_when_it_is_made),
        cmocka_unit_test(no_memory_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
