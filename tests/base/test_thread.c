/* test_thread.c - threads start without signals, and also where no program may choose its cores. */
#include "base/base.h"
#include "base/thread.h"
#include "check.h"

#include <errno.h>

/* As under a filter of system calls that forbids sched_setaffinity. */
int pthread_attr_setaffinity_np(pthread_attr_t *attr, size_t size, const cpu_set_t *cores)
{
    (void)attr;
    (void)size;
    (void)cores;
    return EPERM;
}

static void *look(void *blocked)
{
    pthread_sigmask(SIG_SETMASK, NULL, blocked);
    return NULL;
}

/* A fault on the thread reaches the program's handler, and any other signal another thread. */
static void only_the_signals_of_faults_are_open(void **state)
{
    (void)state;
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    pthread_t thread;
    sigset_t inside, one, before;
    sigemptyset(&one);
    sigaddset(&one, SIGSEGV); /* even if the starting thread blocks one */
    pthread_sigmask(SIG_BLOCK, &one, &before);
    assert_int_equal(tern__thread_new(&thread, NULL, look, &inside), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (int number = 1; number <= SIGRTMAX; number++) {
        bool is_fault = false, is_kept = number == SIGKILL || number == SIGSTOP;
        for (size_t i = 0; i < TERN__COUNT(faults); i++) is_fault |= number == faults[i];
        if (!is_kept && (number < 32 || number >= SIGRTMIN))
            assert_int_equal(sigismember(&inside, number), !is_fault);
    }
}

static void a_thread_starts_where_affinity_is_forbidden(void **state)
{
    (void)state;
    pthread_t thread;
    sigset_t inside, outside;
    assert_int_equal(tern__thread_new(&thread, NULL, look, &inside), 0);
    pthread_join(thread, NULL);
    look(&outside);
    assert_true(sigismember(&inside, SIGTERM) && !sigismember(&outside, SIGTERM));
}

static void chosen_cores_that_are_forbidden_are_an_error(void **state)
{
    (void)state;
    pthread_t thread;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    assert_int_equal(tern__thread_new(&thread, &one, look, NULL), EPERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_signals_of_faults_are_open),
        cmocka_unit_test(a_thread_starts_where_affinity_is_forbidden),
        cmocka_unit_test(chosen_cores_that_are_forbidden_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
