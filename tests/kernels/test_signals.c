/* A handler of a signal that comes in the midst of a product runs on the stack of its thread, although some
 * of oneDNN's kernels point the stack pointer into a buffer of theirs, below which it would overwrite the
 * heap. */
#include "check.h"

#include "kernels/matmul.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>

enum { SIZE = 512, SIGNALS = 2000, SECONDS = 20 };

static _Thread_local const char *stack_low, *stack_high;
static volatile sig_atomic_t on_stack, elsewhere;

static void on_alarm(int number)
{
    const char *frame = __builtin_frame_address(0);
    (void)number;
    if (frame >= stack_low && frame < stack_high)
        on_stack++;
    else
        elsewhere++;
}

/* Of the thread that calls it; workers take signals, too, where a product leaves the stack pointer alone. */
static bool find_stack(void)
{
    pthread_attr_t attr;
    void *low;
    size_t bytes;
    if (pthread_getattr_np(pthread_self(), &attr) || pthread_attr_getstack(&attr, &low, &bytes)) return false;
    pthread_attr_destroy(&attr);
    stack_low = low;
    stack_high = stack_low + bytes;
    return true;
}

static void find_stacks(int threads)
{
    atomic_int found = 0;
    (void)threads; /* which nobody reads without OpenMP */
#pragma omp parallel num_threads(threads)
    found += find_stack();
    assert_true(found > 0);
}

static tern__view ones(void)
{
    tern__view v = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){SIZE, SIZE});
    float *data = v.data = malloc(SIZE * SIZE * sizeof(*data));
    for (int i = 0; i < SIZE * SIZE; i++) data[i] = 1;
    return v;
}

static void ring(bool rings)
{
    const struct itimerval every = {{0, rings ? 50 : 0}, {0, rings ? 50 : 0}};
    assert_return_code(setitimer(ITIMER_REAL, &every, NULL), errno);
}

static void multiply(int threads)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_threads_set(device, threads, &err);
    tern__view a = ones(), b = ones(), y = ones();
    tern__call call = {.kernel = TERN__MATMUL, .device = device, .err = &err, .in = {&a, &b}, .out = {&y}};
    int64_t deadline = tern__now_ns() + SECONDS * INT64_C(1000000000);
    on_stack = elsewhere = 0;
    tern__kernel_run(&call); /* makes the workers */
    find_stacks(threads);
    ring(true);
    while (on_stack + elsewhere < SIGNALS && tern__now_ns() < deadline) tern__kernel_run(&call);
    ring(false);
    assert_ok(err);
    assert_true(on_stack > 0);
    assert_int_equal(elsewhere, 0);
    for (int i = 0; i < SIZE * SIZE; i++) assert_true(((float *)y.data)[i] == SIZE);
    free(a.data);
    free(b.data);
    free(y.data);
    tern_device_close(device);
}

static void handlers_run_on_the_stack(void **unused)
{
    (void)unused;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, before;
    assert_return_code(sigaction(SIGALRM, &action, &before), errno);
    for (int threads = 1; threads <= 3; threads++) multiply(threads);
    sigaction(SIGALRM, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(handlers_run_on_the_stack)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
