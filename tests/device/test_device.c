/* test_device.c - a device's name, its number of threads, and the block cache, also when memory runs out. */
#include "device/device.h"
#include "ledger.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void expect_refused(const char *name, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_device_open(name, &err));
    assert_string_equal(err.text, text);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_device_open");
}

static int clear_environment(void **state)
{
    (void)state;
    unsetenv("TERN_DEVICE");
    unsetenv("OMP_NUM_THREADS");
    unsetenv("LOCAL_WORLD_SIZE");
    return 0;
}

/* ---- names and threads ---- */

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"cpu", "cpu:reference"};
    for (int i = 0; i < 2; i++) {
        setenv("TERN_DEVICE", good[1 - i], 1);
        tern_device *chosen = check_device(good[i]), *fallback = check_device(NULL);
        assert_string_equal(tern_device_name(chosen), good[i]);
        assert_string_equal(tern_device_name(fallback), good[1 - i]);
        tern_device_close(chosen);
        tern_device_close(fallback);
    }
    setenv("TERN_DEVICE", "", 1);
    tern_device *device = check_device(NULL);
    assert_string_equal(tern_device_name(device), "cpu");
    tern_device_close(device);
    tern_device_close(NULL);
    expect_refused("gpu:7", TERN_E_UNSUPPORTED,
                   "device \"gpu:7\": expected \"cpu\", \"cpu:reference\", a group of cores as \"cpu:0\" or "
                   "\"cpu:0-3\", \"cuda\" or \"cuda:0\"");
    setenv("TERN_DEVICE", "gpu", 1);
    expect_refused(NULL, TERN_E_UNSUPPORTED,
                   "device \"gpu\": expected \"cpu\", \"cpu:reference\", a group of cores as \"cpu:0\" or "
                   "\"cpu:0-3\", \"cuda\" or \"cuda:0\"");
    tern_error earlier = {.code = TERN_E_IO};
    assert_null(tern_device_open("cpu", &earlier));
}

static int threads_of_a_new_device(void)
{
    tern_device *device = check_device("cpu");
    int threads = tern_device_threads_get(device);
    tern_device_close(device);
    return threads;
}

static void threads_share_the_cores(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    int cores = tern__device_cores();
    assert_in_range(cores, 1, CPU_COUNT(&all));
    assert_int_equal(threads_of_a_new_device(), cores);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    assert_int_equal(threads_of_a_new_device(), cores > 1 ? cores / 2 : 1);
    unsetenv("LOCAL_WORLD_SIZE");
    static const char *const said[][2] = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                                          {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"}};
    for (int i = 0; i < 2; i++) {
        setenv(said[i][0], "2", 1);
        setenv(said[i][1], "1", 1);
        assert_int_equal(threads_of_a_new_device(), cores > 1 ? cores / 2 : 1);
        unsetenv(said[i][0]);
        unsetenv(said[i][1]);
    }
    setenv("LOCAL_WORLD_SIZE", "100000", 1);
    assert_int_equal(threads_of_a_new_device(), 1);
    setenv("OMP_NUM_THREADS", "7", 1);
    assert_int_equal(threads_of_a_new_device(), 7);
    setenv("OMP_NUM_THREADS", "3,1", 1);
    assert_int_equal(threads_of_a_new_device(), 3);
    clear_environment(NULL);
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(threads_of_a_new_device(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static void switches_are_0_or_1(void **state)
{
    (void)state;
    static const char *const names[] = {"TERN_EXACT_CONV", "TERN_DETERMINISTIC", "TERN_GRAPHS"};
    for (int i = 0; i < 3; i++) {
        char expected[64], before[8] = "";
        const char *old = getenv(names[i]);
        if (old) snprintf(before, sizeof(before), "%s", old);
        setenv(names[i], "yes", 1);
        snprintf(expected, sizeof(expected), "%s=\"yes\": expected 0 or 1", names[i]);
        expect_refused("cpu", TERN_E_ENV, expected);
        setenv(names[i], "0", 1);
        tern_device_close(check_device("cpu"));
        setenv(names[i], before, 1);
    }
}

static void threads_that_cannot_be(void **state)
{
    (void)state;
    setenv("OMP_NUM_THREADS", "four", 1);
    expect_refused("cpu", TERN_E_ENV, "OMP_NUM_THREADS=\"four\" is not an integer");
    setenv("OMP_NUM_THREADS", "4x", 1);
    expect_refused("cpu", TERN_E_ENV, "OMP_NUM_THREADS=\"4x\" is not an integer");
    setenv("OMP_NUM_THREADS", "0", 1);
    expect_refused("cpu", TERN_E_ENV, "OMP_NUM_THREADS=0 is not in [1, 65536]");
    setenv("OMP_NUM_THREADS", "99999999999999999999", 1);
    expect_refused("cpu", TERN_E_ENV, "OMP_NUM_THREADS=\"99999999999999999999\" is not an integer");
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "-2", 1);
    expect_refused("cpu", TERN_E_ENV, "LOCAL_WORLD_SIZE=-2 is not in [1, 1048576]");
    clear_environment(NULL);
    tern_device *device = check_device("cpu");
    tern_error err = {0};
    int before = tern_device_threads_get(device);
    assert_int_equal(tern_device_threads_set(device, 0, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "expected at least 1 thread, got 0");
    assert_int_equal(tern_device_threads_get(device), before);
    assert_int_equal(tern_device_threads_set(device, 3, NULL), TERN_OK);
    assert_int_equal(tern_device_threads_get(device), 3);
    tern_device_close(device);
}

/* ---- the block cache ---- */

static void blocks_are_used_again(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_device *device = check_device("cpu");
    for (size_t bytes = 1; bytes < (1 << 20); bytes = bytes * 3 / 2 + 1) {
        char *first = tern__device_alloc(device, bytes), *second = tern__device_alloc(device, bytes);
        assert_int_equal((uintptr_t)first % 64, 0);
        memset(first, 1, bytes);
        memset(second, 2, bytes);
        assert_true(first[0] == 1 && first[bytes - 1] == 1);
        tern__device_free(device, first);
        tern__device_free(device, second);
        int requests = atomic_load(&books.requests);
        assert_ptr_equal(tern__device_alloc(device, bytes), second); /* freed last, still in the cache */
        assert_ptr_equal(tern__device_alloc(device, bytes), first);
        assert_int_equal(atomic_load(&books.requests), requests);
        tern__device_free(device, first);
        tern__device_free(device, second);
    }
    tern__device_free(device, NULL);
    tern_device_close(device);
    ledger_close(&books);
}

/* A request of a slightly different size reuses a freed block: at most a fifth of a block is wasted. */
static void sizes_of_one_class_share_blocks(void **state)
{
    (void)state;
    tern_device *device = check_device("cpu");
    void *block = tern__device_alloc(device, 1200);
    tern__device_free(device, block);
    assert_ptr_equal(tern__device_alloc(device, 1280), block);
    tern__device_free(device, block);
    void *larger = tern__device_alloc(device, 1281), *smaller = tern__device_alloc(device, 1024);
    assert_true(larger != block && smaller != block);
    tern__device_free(device, larger);
    tern__device_free(device, smaller);
    tern_device_close(device);
}

typedef struct parcel {
    tern_device *device;
    void *block;
} parcel;

static void *free_elsewhere(void *arg)
{
    parcel *p = arg;
    tern__device_free(p->device, p->block);
    return NULL;
}

static void a_block_comes_back_from_another_thread(void **state)
{
    (void)state;
    pthread_t thread;
    parcel p = {.device = check_device("cpu")};
    p.block = tern__device_alloc(p.device, 4096);
    assert_int_equal(pthread_create(&thread, NULL, free_elsewhere, &p), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ptr_equal(tern__device_alloc(p.device, 4096), p.block);
    tern__device_free(p.device, p.block);
    tern_device_close(p.device);
}

/* ---- out of memory ---- */

static void refuse(ledger *books, bool all)
{
    books->refuse_at = atomic_load(&books->requests) + 1;
    books->refuse_all = all;
}

static void the_cache_is_emptied_before_memory_is_out(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_device *device = check_device("cpu");
    int live = atomic_load(&books.live);
    void *small = tern__device_alloc(device, 100), *kept = tern__device_alloc(device, 200);
    tern__device_free(device, small);
    assert_int_equal(atomic_load(&books.live), live + 2);
    refuse(&books, false); /* only once: the second try succeeds */
    void *large = tern__device_alloc(device, 100000);
    assert_non_null(large);
    assert_int_equal(atomic_load(&books.live), live + 2); /* `kept` and `large`: the cached block was freed */
    refuse(&books, true);
    assert_null(tern__device_alloc(device, 300000));
    tern__device_free(device, large);
    assert_ptr_equal(tern__device_alloc(device, 100000), large); /* the cache needs no memory */
    assert_null(tern__device_alloc(device, SIZE_MAX - 8));
    for (int bits = 47; bits < 64; bits++) assert_null(tern__device_alloc(device, (size_t)1 << bits));
    tern__device_free(device, large);
    tern__device_free(device, kept);
    tern_device_close(device);
    ledger_close(&books);
}

static void scratch_grows_and_survives_a_refusal(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_device *device = check_device("cpu");
    void *first = tern__device_scratch(device, TERN__SCRATCH_LIBRARY, 1000);
    assert_ptr_equal(tern__device_scratch(device, TERN__SCRATCH_LIBRARY, 10), first);
    assert_true(tern__device_scratch(device, TERN__SCRATCH_OPERAND, 10) != first);
    refuse(&books, true);
    assert_null(tern__device_scratch(device, TERN__SCRATCH_LIBRARY, 1 << 20));
    books.refuse_at = 0;
    assert_non_null(tern__device_scratch(device, TERN__SCRATCH_LIBRARY, 1000));
    tern_device_close(device);
    ledger_close(&books);
}

/* Returns the resident kilobytes of this process. */
static long resident_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "Rss: %ld", &kb) != 1) continue;
    if (file) fclose(file);
    return kb;
}

/* Once a large mapped block has been freed, malloc takes the next ones from its heap, which does not shrink
 * below a block that is in use. */
static void outgrown_scratch_leaves_memory(void **state)
{
    (void)state;
    enum { MB = 1 << 20, LARGE = 24 * MB };
    tern_device *device = check_device("cpu");
    tern__device_release(device, tern__device_alloc(device, LARGE)); /* malloc's threshold is raised now */
    void *scratch = tern__device_scratch(device, TERN__SCRATCH_LIBRARY, LARGE);
    void *above = tern__device_alloc(device, LARGE / 2);
    memset(scratch, 1, LARGE);
    memset(above, 1, LARGE / 2);
    size_t bytes = tern__device_bytes(device);
    long full = resident_kb();
    assert_non_null(tern__device_scratch(device, TERN__SCRATCH_LIBRARY, 2 * LARGE)); /* untouched pages */
    assert_true(resident_kb() < full - LARGE / 1024 * 3 / 4);
    assert_int_equal(tern__device_bytes(device), bytes + LARGE);
    tern__device_scratch_free(device, -1);
    assert_int_equal(tern__device_bytes(device), bytes - LARGE);
    assert_int_equal(((char *)above)[LARGE / 2 - 1], 1);
    tern__device_free(device, above);
    tern_device_close(device);
}

static void errors_tell_size_and_shape(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_error err = {0};
    refuse(&books, true);
    assert_null(tern_device_open("cpu", &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_string_equal(err.func, "tern_device_open");
    books.refuse_at = 0;
    err = (tern_error){0};
    tern_device *device = check_device("cpu");
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    tern_tensor_from(scope, NULL, TERN_F32, 0, NULL); /* so that the scope has its own memory */
    assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    tern_tensor_from(scope, NULL, TERN_F32, 0, NULL);
    refuse(&books, true);
    assert_null(tern_tensor_from(scope, NULL, TERN_F64, 2, (int64_t[]){300, 7}));
    assert_int_equal(tern_scope_end(scope, &err), TERN_E_MEMORY);
    assert_string_equal(err.text, "out of memory: 16800 bytes for a tensor (300, 7) of f64");
    books.refuse_at = 0;
    assert_non_null(tern_tensor_from(scope, NULL, TERN_F64, 2, (int64_t[]){300, 7}));
    tern_scope_free(scope);
    tern_device_close(device);
    ledger_close(&books);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(names, clear_environment),
        cmocka_unit_test_setup(threads_share_the_cores, clear_environment),
        cmocka_unit_test_setup(switches_are_0_or_1, clear_environment),
        cmocka_unit_test_setup(threads_that_cannot_be, clear_environment),
        cmocka_unit_test_setup(blocks_are_used_again, clear_environment),
        cmocka_unit_test(sizes_of_one_class_share_blocks),
        cmocka_unit_test(a_block_comes_back_from_another_thread),
        cmocka_unit_test(the_cache_is_emptied_before_memory_is_out),
        cmocka_unit_test(scratch_grows_and_survives_a_refusal),
        cmocka_unit_test(outgrown_scratch_leaves_memory),
        cmocka_unit_test(errors_tell_size_and_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
