/* test_fork.c - a forked child has its parent's devices, but none of the threads that the parent's kernels
 * ran on. */
#include "check.h"

#include "kernels/matmul.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 512, THREADS = 3, DEADLINE_S = 60 };

/* Counts the offloading libraries that OpenMP has tried to load. */
static atomic_int offload_libraries;

__attribute__((visibility("default"))) void *dlopen(const char *name, int flags)
{
    static void *(*next)(const char *name, int flags);
    if (!next) next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (name && strstr(name, "libgomp-plugin")) offload_libraries++;
    return next(name, flags);
}

static tern__view ones(void)
{
    tern__view v = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){SIZE, SIZE});
    float *data = v.data = malloc(SIZE * SIZE * sizeof(*data));
    for (int i = 0; i < SIZE * SIZE; i++) data[i] = 1;
    return v;
}

static bool is_right(tern_device *device)
{
    tern_error err = {0};
    tern__view a = ones(), b = ones(), y = ones();
    tern__call call = {.kernel = TERN__MATMUL, .device = device, .err = &err, .in = {&a, &b}, .out = {&y}};
    bool right = tern__kernel_run(&call) == TERN_OK;
    for (int i = 0; i < SIZE * SIZE; i++) right = right && ((float *)y.data)[i] == SIZE;
    free(a.data);
    free(b.data);
    free(y.data);
    return right;
}

static int running_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) count += task->d_name[0] != '.';
    if (tasks) closedir(tasks);
    return count;
}

/* Returns 0, or the number of the failed check. A child that waits for a thread that does not exist is ended
 * by the alarm. */
static int be_child(tern_device *device, int threads)
{
    alarm(DEADLINE_S);
    if (running_threads() != 1) return 1;
    if (!is_right(device)) return 2;
    if (running_threads() != threads) return 3;
    tern_device_close(device);
    return 0;
}

static void check(const char *name, int threads)
{
    tern_error err = {0};
    int status;
    tern_device *device = tern_device_open(name, &err);
    tern_device_threads_set(device, threads, &err);
    assert_ok(err);
    assert_true(is_right(device));
    pid_t child = fork();
    if (child == 0) _exit(be_child(device, threads));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(is_right(device));
    tern_device_close(device);
}

static void a_child_computes_on_as_many_threads(void **state)
{
    (void)state;
#ifdef _OPENMP
    check("cpu", THREADS);
#endif
    check("cpu", 1);
}

/* The device's own thread exists only in the parent. */
static void a_child_has_the_devices_of_groups_of_cores(void **state)
{
    (void)state;
    check("cpu:0", 1);
#ifdef _OPENMP
    check("cpu:0", THREADS);
#endif
}

/* The offloading library for NVIDIA's GPUs would initialise CUDA, which then would not work in forked
 * children. */
static void openmp_looks_for_no_gpu(void **state)
{
    (void)state;
#ifdef _OPENMP
    check("cpu", THREADS);
#endif
    assert_int_equal(offload_libraries, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_computes_on_as_many_threads),
        cmocka_unit_test(a_child_has_the_devices_of_groups_of_cores),
        cmocka_unit_test(openmp_looks_for_no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
