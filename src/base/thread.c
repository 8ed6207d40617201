/* thread.c - starts threads with a set of cores and without signals. */
#include "base/thread.h"

#include "base/cores.h"

void tern__signals_block(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

void tern__signals_restore(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg)
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
    if (!status) status = create(thread, &attr, body, arg);
    pthread_attr_destroy(&attr);
    return status;
}
