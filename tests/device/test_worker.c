/* test_worker.c - devices that are groups of cores: their threads are bound to the cores, and invalid lists
 * are refused. */
#include "cpus.h"
#include "device/device.h"
#include "kernels/matmul.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_affinity(void *ctx)
{
    sched_getaffinity(0, sizeof(cpu_set_t), ctx);
}

static void the_thread_is_bound(void **state)
{
    (void)state;
    const cpu_set_t all = cpus_at_start;
    cpu_set_t seen;
    int last = CPU_COUNT(&all) - 1;
    char name[32];
    for (int core = 0; core <= last; core += last ? last : 1) {
        snprintf(name, sizeof(name), "cpu:%d", core);
        tern_device *device = check_device(name);
        assert_int_equal(tern_device_threads_get(device), 1);
        tern__device_start(device, write_affinity, &seen);
        tern__device_await(device);
        assert_int_equal(CPU_COUNT(&seen), 1);
        assert_true(CPU_EQUAL(&all, &seen) || core != last || !CPU_ISSET(0, &seen));
        tern_device_close(device);
    }
    snprintf(name, sizeof(name), "cpu:0-%d", last);
    tern_device *device = check_device(name);
    tern__device_start(device, write_affinity, &seen);
    tern__device_await(device);
    assert_true(CPU_EQUAL(&all, &seen));
    assert_int_equal(tern_device_threads_get(device), last + 1);
    assert_string_equal(tern_device_name(device), name);
    tern_device_close(device);
}

static tern__view square(int64_t size)
{
    tern__view v = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){size, size});
    v.data = calloc((size_t)(size * size), sizeof(float));
    return v;
}

static void multiply(tern_device *device)
{
    tern_error err = {0};
    tern__view a = square(256), b = square(256), y = square(256);
    tern__call call = {.kernel = TERN__MATMUL, .device = device, .err = &err, .in = {&a, &b}, .out = {&y}};
    tern__kernel_run(&call);
    assert_ok(err);
    free(a.data);
    free(b.data);
    free(y.data);
}

/* The OpenMP team of the device's thread. */
typedef struct team {
    int threads;
    cpu_set_t cores;
    atomic_int elsewhere; /* threads whose affinity is not exactly `cores` */
} team;

static void count_elsewhere(void *ctx)
{
    team *t = ctx;
#pragma omp parallel num_threads(t->threads)
    {
        cpu_set_t now;
        sched_getaffinity(0, sizeof(now), &now);
        t->elsewhere += !CPU_EQUAL(&now, &t->cores);
    }
}

static void check_team(const char *name)
{
    team t = {0};
    tern_device *device = check_device(name);
    t.threads = tern_device_threads_get(device);
    tern__device_start(device, write_affinity, &t.cores);
    tern__device_await(device);
    assert_int_equal(CPU_COUNT(&t.cores), t.threads);
    multiply(device);
    tern__device_start(device, count_elsewhere, &t);
    tern__device_await(device);
    assert_int_equal(t.elsewhere, 0);
    tern_device_close(device);
}

/* This holds wherever OpenMP would bind the threads of its team. The calling thread's affinity does not
 * change. */
static void kernels_run_on_the_devices_cores(void **state)
{
    (void)state;
    cpu_set_t before, after;
    char name[32];
    int last = CPU_COUNT(&cpus_at_start) - 1;
    sched_getaffinity(0, sizeof(before), &before);
    snprintf(name, sizeof(name), "cpu:%d", last);
    check_team(name);
    snprintf(name, sizeof(name), "cpu:0-%d", last);
    check_team(name);
    sched_getaffinity(0, sizeof(after), &after);
    assert_true(CPU_EQUAL(&before, &after));
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"cpu:",   "cpu:-1",   "cpu:1-0", "cpu:0,", "cpu:0-",
                                        "cpu:,0", "cpu:0--1", "cpu:x",   "cpu:0 1"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        tern_error err = {0};
        assert_null(tern_device_open(wrong[i], &err));
        assert_int_equal(err.code, TERN_E_UNSUPPORTED);
    }
    tern_error err = {0};
    assert_null(tern_device_open("cpu:0-100000", &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_non_null(strstr(err.text, "device \"cpu:0-100000\": this process may use "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_thread_is_bound),
        cmocka_unit_test(kernels_run_on_the_devices_cores),
        cmocka_unit_test(wrong_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
