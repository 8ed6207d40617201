/* test_hooks.c - the hooks.
 *
 * Allocator: a training step gives the same bits on memory full of garbage that is aligned exactly as asked
 * for; every block is freed; several threads may call. Log: every level, whole texts, several threads.
 * tests/install/test_symbols.py checks that no other allocator is called. */
#include "base/base.h"
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, STEPS = 2, BATCH = 2, SIDE = 8, CLASSES = 3, GARBAGE = 0xa5, ALIGN_MAX = 4096 };

/* ---- an allocator that gives no more alignment than asked for ---- */

typedef struct strict {
    atomic_int requests, live, faults; /* faults: a request or a return that breaks the contract */
    atomic_int seen[THREADS];          /* requests of each thread of the test                    */
} strict;

static _Thread_local int this_thread;

/* Precedes each block. */
typedef struct head {
    void *whole;
    strict *owner;
    size_t bytes;
} head;

static bool is_asked_rightly(size_t bytes, size_t align)
{
    return bytes > 0 && align > 0 && (align & (align - 1)) == 0 && align <= ALIGN_MAX;
}

/* Returns an odd multiple of `align`; the memory around it is garbage, too. */
static void *strict_alloc(size_t bytes, size_t align, void *ctx)
{
    strict *s = ctx;
    if (!is_asked_rightly(bytes, align)) atomic_fetch_add(&s->faults, 1);
    size_t room = TERN__MAX(2 * align, sizeof(head)), size = bytes + 2 * room + 2 * align;
    char *whole = malloc(size);
    if (!whole) return NULL;
    memset(whole, GARBAGE, size);
    uintptr_t at = ((uintptr_t)whole + room + 2 * align - 1) / (2 * align) * (2 * align) + align;
    memcpy((char *)at - sizeof(head), &(head){whole, s, bytes}, sizeof(head));
    atomic_fetch_add(&s->requests, 1);
    atomic_fetch_add(&s->live, 1);
    atomic_fetch_add(&s->seen[this_thread], 1);
    return (void *)at;
}

static void strict_free(void *ptr, void *ctx)
{
    head h;
    strict *s = ctx;
    memcpy(&h, (char *)ptr - sizeof(h), sizeof(h));
    if (h.owner != s) atomic_fetch_add(&s->faults, 1);
    memset((char *)ptr - sizeof(h), GARBAGE, sizeof(h) + h.bytes);
    atomic_fetch_sub(&s->live, 1);
    free(h.whole);
}

/* ---- training ---- */

static tern_module *new_net(tern_rng *rng, tern_error *err)
{
    tern_resnet_opts opts = tern_resnet_defaults();
    opts.in_channels = 1;
    opts.classes = CLASSES;
    opts.stages = 1;
    opts.blocks[0] = 1;
    opts.channels[0] = 16;
    opts.small_stem = true;
    return tern_resnet_new(&opts, rng, err);
}

static void step(tern_module *net, tern_scope *s, tern_rng *rng, tern_optim *optim)
{
    tern_tensor *x = tern_randn(s, rng, 4, (int64_t[]){BATCH, 1, SIDE, SIDE});
    tern_tensor *y = tern_tensor_from(s, (int64_t[]){2, 0}, TERN_I64, 1, (int64_t[]){BATCH});
    tern_backward(s, tern_cross_entropy(s, tern_forward(net, s, x), y, NULL));
    tern_optim_step(optim, s);
}

/* Opens the device, trains, and frees everything. The result is the last layer's weights. */
static void train(float weights[CLASSES * 16], tern_error *err)
{
    tern_device *device = tern_device_open("cpu", err);
    tern_device_threads_set(device, 1, err);
    tern_rng *rng = tern_rng_new(5, err);
    tern_module *net = new_net(rng, err);
    tern_optim *optim = tern_adam_new(net, NULL, err);
    tern_scope *s = tern_scope_new(device, NULL, err);
    for (int i = 0; i < STEPS && !err->code; i++) {
        step(net, s, rng, optim);
        tern_scope_end(s, err);
    }
    if (!err->code)
        tern_tensor_read(tern_state_find(net, "fc.weight"), weights, CLASSES * 16 * sizeof(float), err);
    tern_scope_free(s);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
}

typedef struct job {
    pthread_t thread;
    int number;
    tern_error err;
    float weights[CLASSES * 16];
} job;

static void *run_job(void *arg)
{
    job *j = arg;
    this_thread = j->number;
    train(j->weights, &j->err);
    return NULL;
}

static void a_training_on_strict_memory(void **state)
{
    (void)state;
    static strict books;
    tern_error err = {0};
    float want[CLASSES * 16], got[CLASSES * 16];
    train(want, &err);
    tern__allocator_replace(&(tern_allocator){strict_alloc, strict_free, &books});
    train(got, &err);
    assert_ok(err);
    assert_memory_equal(got, want, sizeof(want));
    assert_in_range(atomic_load(&books.requests), 50, 10000);
    assert_int_equal(atomic_load(&books.live), 0);
    assert_int_equal(atomic_load(&books.faults), 0);
    int before = atomic_load(&books.requests);
    tern__allocator_replace(NULL);
    train(got, &err);
    assert_ok(err);
    assert_int_equal(atomic_load(&books.requests), before);
}

/* Runs first: nothing has been allocated. */
static void an_allocator_comes_before_all_else(void **state)
{
    (void)state;
    static strict books;
    tern_error err = {0};
    assert_int_equal(tern_allocator_set(&(tern_allocator){strict_alloc, NULL, &books}, &err), TERN_E_INVALID);
    assert_int_equal(tern_allocator_set(NULL, NULL), TERN_OK);
    assert_int_equal(tern_allocator_set(&(tern_allocator){strict_alloc, strict_free, &books}, NULL), TERN_OK);
    tern_rng *rng = tern_rng_new(1, NULL);
    assert_true(atomic_load(&books.live) > 0);
    err = (tern_error){0};
    assert_int_equal(tern_allocator_set(NULL, &err), TERN_E_STATE);
    assert_non_null(strstr(err.text, "set the allocator before any other call"));
    tern_rng_free(rng);
    assert_int_equal(atomic_load(&books.live), 0);
    tern__allocator_replace(NULL);
}

static void trainings_in_several_threads(void **state)
{
    (void)state;
    static strict books;
    static job jobs[THREADS];
    tern__allocator_replace(&(tern_allocator){strict_alloc, strict_free, &books});
    for (int i = 0; i < THREADS; i++) {
        jobs[i].number = i;
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(jobs[i].thread, NULL);
    tern__allocator_replace(NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_ok(jobs[i].err);
        assert_memory_equal(jobs[i].weights, jobs[0].weights, sizeof(jobs[0].weights));
        assert_in_range(atomic_load(&books.seen[i]), 50, 10000);
    }
    assert_int_equal(atomic_load(&books.live), 0);
    assert_int_equal(atomic_load(&books.faults), 0);
}

/* ---- log ---- */

enum { LINES = 50 };

typedef struct journal {
    atomic_int lines[THREADS][LINES]; /* how often thread t's line i came */
    atomic_int faults;
} journal;

static void keep_line(tern_log_level level, const char *text, void *ctx)
{
    journal *j = ctx;
    int thread, line, end = 0;
    bool is_ours = sscanf(text, "thread %d line %d end%n", &thread, &line, &end) == 2 && !text[end];
    if (!is_ours || thread != this_thread || (int)level != line % 4)
        atomic_fetch_add(&j->faults, 1);
    else
        atomic_fetch_add(&j->lines[thread][line], 1);
}

static void *write_lines(void *arg)
{
    this_thread = *(int *)arg;
    for (int i = 0; i < LINES; i++)
        tern__log((tern_log_level)(i % 4), "thread %d line %d end", this_thread, i);
    return NULL;
}

static void every_level_from_every_thread(void **state)
{
    (void)state;
    static journal book;
    pthread_t threads[THREADS];
    int numbers[THREADS];
    setenv("TERN_LOG", "error", 1); /* for the default only */
    tern_log_set(keep_line, &book);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    tern_log_set(NULL, NULL);
    unsetenv("TERN_LOG");
    assert_int_equal(atomic_load(&book.faults), 0);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < LINES; i++) assert_int_equal(atomic_load(&book.lines[t][i]), 1);
}

/* Returns what the default writes to stderr for one message of each level. */
static const char *written(void)
{
    static char text[512];
    char path[] = "/tmp/tern-log-XXXXXX";
    int file = mkstemp(path), stderr_before = dup(STDERR_FILENO);
    assert_true(file >= 0 && stderr_before >= 0);
    unlink(path);
    dup2(file, STDERR_FILENO);
    for (int level = TERN_LOG_ERROR; level <= TERN_LOG_DEBUG; level++)
        tern__log((tern_log_level)level, "message %d", level);
    dup2(stderr_before, STDERR_FILENO);
    ssize_t length = pread(file, text, sizeof(text) - 1, 0);
    assert_true(length >= 0);
    text[length] = 0;
    close(file);
    close(stderr_before);
    return text;
}

static void null_restores_the_default(void **state)
{
    (void)state;
    static const char *const names[] = {"error", "warn", "info", "debug"};
    static const char all[] = "tern: error: message 0\ntern: warn: message 1\ntern: info: message 2\n"
                              "tern: debug: message 3\n";
    static journal book;
    tern_log_set(keep_line, &book);
    tern_log_set(NULL, NULL);
    assert_string_equal(written(), "tern: error: message 0\ntern: warn: message 1\n");
    const char *end = all;
    for (int bar = 0; bar < 4; bar++) {
        end = strchr(end, '\n') + 1;
        setenv("TERN_LOG", names[bar], 1);
        const char *text = written();
        assert_int_equal(strlen(text), end - all);
        assert_memory_equal(text, all, strlen(text));
    }
    setenv("TERN_LOG", "verbose", 1);
    for (int first = 1; first >= 0; first--) {
        const char *text = written();
        bool is_told = strstr(text, "TERN_LOG=\"verbose\": expected error, warn, info or debug\n") != NULL;
        assert_int_equal(is_told, first);
        assert_non_null(strstr(text, "tern: error: message 0\ntern: warn: message 1\n"));
        assert_null(strstr(text, "message 2"));
    }
    unsetenv("TERN_LOG");
    assert_int_equal(atomic_load(&book.faults), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocator_comes_before_all_else), cmocka_unit_test(a_training_on_strict_memory),
        cmocka_unit_test(trainings_in_several_threads),       cmocka_unit_test(every_level_from_every_thread),
        cmocka_unit_test(null_restores_the_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
