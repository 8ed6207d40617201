/* thread.c - starts threads with a set of cores and without the signals that are meant for the program. */
#include "base/thread.h"

#include "base/cores.h"

/* The signals of a thread's own faults stay unblocked: at a fault whose signal is blocked the kernel ends
 * the process without the program's or a sanitizer's handler, and a blocked raise or abort is put off for
 * ever. */
void tern__signals_block(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_SETMASK, &others, before);
}

void tern__signals_restore(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int thread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg)
{
    sigset_t before;
    tern__signals_block(&before);
    int status = pthread_create(thread, attr, body, arg);
    tern__signals_restore(&before);
    return status;
}

int tern__thread_new(pthread_t *thread, const cpu_set_t *cores, void *(*body)(void *), void *arg)
{
    cpu_set_t all;
    pthread_attr_t attr;
    int status = pthread_attr_init(&attr);
    if (status) return status;
    if (!cores && tern__cores_are_placed() && tern__cores_get(&all) == 0) cores = &all;
    if (cores) status = pthread_attr_setaffinity_np(&attr, sizeof(*cores), cores);
    if (!status) status = thread_create(thread, &attr, body, arg);
    pthread_attr_destroy(&attr);
    return status;
}
