/* check.h - cmocka with the headers that it needs, and macros that all tests use. A test is skipped by
 * skip_test, not by cmocka's skip, which gives no reason. */
#ifndef TERN_TESTS_CHECK_H
#define TERN_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "skips.h"

#include <tern.h>

#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
/* oneDNN is not compiled for ThreadSanitizer, which sees the accesses to its primitive cache but not its
 * lock. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl.so\nrace:libdnnl.so\n";
}
#endif

/* Fails with the error's own text. */
#define assert_ok(err)                                                                                       \
    do {                                                                                                     \
        if ((err).code) fail_msg("%s: %s: %s", tern_status_name((err).code), (err).func, (err).text);        \
    } while (0)

/* Ends the running test as skipped. The reason is what this machine or this build lacks. */
#define skip_test(reason) (skip_running_test(reason), _skip(__FILE__, __LINE__))
#undef skip

/* Skips the running test if this build lacks the part. A part that it has must also work. */
#define need_part(part)                                                                                      \
    do {                                                                                                     \
        if (!has_part(part)) skip_test("this build has no " part);                                           \
    } while (0)

/* The plug-ins are in the build folder, the parent of this program's folder. */
static inline int choose_plugins(void)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 4);
    if (length <= 0) return -1;
    path[length] = '\0';
    strcpy(strrchr(path, '/'), "/..");
    return setenv("TERN_PLUGIN_PATH", path, 1);
}

/* Returns memory of zeros that this process and those that it will fork share. munmap frees it. */
static inline void *share_memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}

/* Returns an open device. */
static inline tern_device *check_device(const char *name)
{
    tern_error err = {0};
    tern_device *device = tern_device_open(name, &err);
    assert_ok(err);
    return device;
}

/* cmocka does not tell which test is running. It runs them in order, so each one counts itself when it
 * starts: in its set-up if it has one. */
static struct check_group {
    const struct CMUnitTest *tests;
    const char *running;
    size_t next, skipped;
} check_group;

static inline void skip_running_test(const char *reason)
{
    check_group.skipped++;
    skip_record(check_group.running ? check_group.running : "set-up", reason);
}

static inline int check_set_up(void **state)
{
    const struct CMUnitTest *test = &check_group.tests[check_group.next++];
    check_group.running = test->name;
    return test->setup_func(state);
}

static inline void check_test(void **state)
{
    const struct CMUnitTest *test = &check_group.tests[check_group.next++];
    check_group.running = test->name;
    test->test_func(state);
}

/* Returns SKIPPED if every test was skipped. */
static inline int check_run_group(const char *name, const struct CMUnitTest *tests, size_t count,
                                  CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    struct CMUnitTest *counted = malloc(count * sizeof(*counted));
    if (!counted) return 1;
    for (size_t i = 0; i < count; i++) {
        counted[i] = tests[i];
        if (tests[i].setup_func)
            counted[i].setup_func = check_set_up;
        else
            counted[i].test_func = check_test;
    }
    check_group = (struct check_group){.tests = tests};
    int failed = _cmocka_run_group_tests(name, counted, count, set_up, tear_down);
    free(counted);
    return failed ? 1 : check_group.skipped == count ? SKIPPED : 0;
}

#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, set_up, tear_down)                                                     \
    check_run_group(#tests, tests, sizeof(tests) / sizeof(*(tests)), set_up, tear_down)

#endif
