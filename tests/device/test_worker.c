/* Groups of cores: their threads are bound to them, and wrong lists are refused. */
#include "check.h"
#include "device/device.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static tern_device *open_device(const char *name)
{
    tern_error err = {0};
    tern_device *device = tern_device_open(name, &err);
    assert_ok(err);
    return device;
}

static void write_affinity(void *ctx)
{
    sched_getaffinity(0, sizeof(cpu_set_t), ctx);
}

static void the_thread_is_bound(void **state)
{
    (void)state;
    cpu_set_t all, seen;
    sched_getaffinity(0, sizeof(all), &all);
    int last = CPU_COUNT(&all) - 1;
    char name[32];
    for (int core = 0; core <= last; core += last ? last : 1) {
        snprintf(name, sizeof(name), "cpu:%d", core);
        tern_device *device = open_device(name);
        assert_int_equal(tern_device_threads_get(device), 1);
        tern__device_start(device, write_affinity, &seen);
        tern__device_await(device);
        assert_int_equal(CPU_COUNT(&seen), 1);
        assert_true(CPU_EQUAL(&all, &seen) || core != last || !CPU_ISSET(0, &seen));
        tern_device_close(device);
    }
    snprintf(name, sizeof(name), "cpu:0-%d", last);
    tern_device *device = open_device(name);
    tern__device_start(device, write_affinity, &seen);
    tern__device_await(device);
    assert_true(CPU_EQUAL(&all, &seen));
    assert_int_equal(tern_device_threads_get(device), last + 1);
    assert_string_equal(tern_device_name(device), name);
    tern_device_close(device);
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
        cmocka_unit_test(wrong_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
