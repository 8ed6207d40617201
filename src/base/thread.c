/* thread.c - starts threads with a set of cores and without signals. */
#include "base/thread.h"

#include "base/cores.h"

#include <signal.h>

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(thread, attr, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

int tern__thread_new(pthread_t *thread, const cpu_set_t *cores, void *(*body)(void *), void *arg)
{
    cpu_set_t all;
    pthread_attr_t attr;
    int status = pthread_attr_init(&attr);
    if (status) return status;
    if (!cores && tern__cores_get(&all) == 0) cores = &all;
    if (cores) status = pthread_attr_setaffinity_np(&attr, sizeof(*cores), cores);
    if (!status) status = create(thread, &attr, body, arg);
    pthread_attr_destroy(&attr);
    return status;
}
