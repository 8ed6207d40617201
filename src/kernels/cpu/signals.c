/* signals.c - blocks signals while a kernel runs.
 *
 * Some of oneDNN's matrix products (jit_avx_gemm_f32) use the stack pointer as a pointer into their
 * buffer, which is on the heap for long sums. If a signal handler ran meanwhile its frame would be written
 * below that pointer, over whatever is there. A signal sent to the process goes to any thread that does
 * not block it, first to the main thread. So while that one blocks signals no worker may accept them
 * either. Nor may a worker keep the mask afterwards: the program's own loops run on it and start threads
 * and processes. */
#include "kernels/cpu/signals.h"

#include "base/base.h"

#include <pthread.h>
#include <stdbool.h>

static void hold(sigset_t *before)
{
    static const int faults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < TERN__COUNT(faults); i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, before);
}

/* Of a worker: whether it blocks signals, and its mask before. */
static _Thread_local bool holds;
static _Thread_local sigset_t own;

static void hold_in_workers(int threads)
{
    const pthread_t caller = pthread_self();
    (void)threads; /* unused without OpenMP */
#pragma omp parallel num_threads(threads)
    if (!holds && !pthread_equal(pthread_self(), caller)) {
        hold(&own);
        holds = true;
    }
}

/* Workers that the kernel started inherited the caller's blocking mask. */
static void release_in_workers(int threads, const sigset_t *callers)
{
    const pthread_t caller = pthread_self();
    (void)threads;
#pragma omp parallel num_threads(threads)
    if (!pthread_equal(pthread_self(), caller)) {
        pthread_sigmask(SIG_SETMASK, holds ? &own : callers, NULL);
        holds = false;
    }
}

void tern__signals_hold(int threads, sigset_t *before)
{
    if (threads > 1) hold_in_workers(threads);
    hold(before);
}

void tern__signals_release(int threads, const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
    if (threads > 1) release_in_workers(threads, before);
}
