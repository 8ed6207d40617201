/* test_clock.c - a thread's clock counts the time it computes, not the time it waits. */
#include "base/base.h"
#include "check.h"

#include <time.h>

#define MS INT64_C(1000000)

static void waiting_does_not_count(void **state)
{
    (void)state;
    int64_t began = tern__now_ns(), used = tern__thread_ns();
    nanosleep(&(struct timespec){.tv_nsec = 100 * MS}, NULL);
    used = tern__thread_ns() - used;
    assert_true(tern__now_ns() - began >= 100 * MS);
    assert_in_range(used, 0, 50 * MS);
}

static void computing_counts(void **state)
{
    (void)state;
    int64_t began = tern__now_ns(), used = tern__thread_ns();
    while (tern__thread_ns() - used < 10 * MS) continue;
    assert_true(tern__now_ns() - began >= 10 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_does_not_count),
        cmocka_unit_test(computing_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
