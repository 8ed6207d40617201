/* test_signals.c - a signal handler that interrupts one of oneDNN's products runs on its thread's stack. Some
 * of oneDNN's kernels point the stack pointer into one of their buffers; a handler would then overwrite the
 * heap below it. */
#include "check.h"

#include "kernels/cpu/matrix.h"

#include <errno.h>
#ifdef _OPENMP
#include <omp.h>
#endif
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

/* Finds the stack of the calling thread. Workers handle signals, too, if a product does not change the stack
 * pointer. */
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
    (void)threads; /* unused without OpenMP */
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

typedef struct product {
    tern_error err;
    tern_device *device;
    tern__view a, b, y;
} product;

static void product_open(product *p, int threads)
{
    *p = (product){.a = ones(), .b = ones(), .y = ones()};
    p->device = tern_device_open("cpu", &p->err);
    tern_device_threads_set(p->device, threads, &p->err);
#ifdef _OPENMP
    omp_set_num_threads(threads); /* which oneDNN asks for; else tern__kernel_run does it */
#endif
}

static void product_run(product *p)
{
    tern__call call = {
        .kernel = TERN__MATMUL, .device = p->device, .err = &p->err, .in = {&p->a, &p->b}, .out = {&p->y}};
    tern__product seen = tern__product_of(&call);
    tern__dnnl_multiply(&call, &seen, (char *[]){p->a.data, p->b.data, p->y.data}, false);
}

static void product_close(product *p)
{
    assert_ok(p->err);
    for (int i = 0; i < SIZE * SIZE; i++) assert_true(((float *)p->y.data)[i] == SIZE);
    free(p->a.data);
    free(p->b.data);
    free(p->y.data);
    tern_device_close(p->device);
}

static void multiply(int threads)
{
    product p;
    product_open(&p, threads);
    int64_t deadline = tern__now_ns() + SECONDS * INT64_C(1000000000);
    on_stack = elsewhere = 0;
    product_run(&p); /* starts the workers */
    find_stacks(threads);
    ring(true);
    while (on_stack + elsewhere < SIGNALS && tern__now_ns() < deadline) product_run(&p);
    ring(false);
    assert_true(on_stack > 0);
    assert_int_equal(elsewhere, 0);
    product_close(&p);
}

static void handlers_run_on_the_stack(void **unused)
{
    (void)unused;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, before;
    assert_return_code(sigaction(SIGALRM, &action, &before), errno);
    for (int threads = 1; threads <= 3; threads++) multiply(threads);
    sigaction(SIGALRM, &before, NULL);
}

/* Counts the threads of the team whose signal mask is not exactly SIGUSR1. */
static int count_changed(int threads)
{
    atomic_int changed = 0;
    (void)threads; /* unused without OpenMP */
#pragma omp parallel num_threads(threads)
    {
        sigset_t now;
        pthread_sigmask(SIG_SETMASK, NULL, &now);
        for (int number = 1; number < 32; number++)
            if (sigismember(&now, number) != (number == SIGUSR1)) {
                changed++;
                break;
            }
    }
    return changed;
}

static void block_one(int threads)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    (void)threads;
#pragma omp parallel num_threads(threads)
    pthread_sigmask(SIG_SETMASK, &one, NULL);
}

/* The program's own loops run on the same threads, and may start threads and processes, which inherit the
 * mask. */
static void threads_have_their_masks_back(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    product p;
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    product_open(&p, THREADS);
    block_one(THREADS);
    for (int i = 0; i < 3; i++) {
        product_run(&p);
        assert_int_equal(count_changed(THREADS), 0);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    tern__device_rest(p.device); /* ends the threads, whose stacks other tests do not know */
    product_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_have_their_masks_back),
        cmocka_unit_test(handlers_run_on_the_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
