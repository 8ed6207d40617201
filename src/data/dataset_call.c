/* dataset_call.c - names a call of a dataset's function that does not return. */
#include "data/dataset_call.h"
#include "base/thread.h"

#include <stdio.h>
#include <time.h>

void tern__dataset_call_name(tern__dataset_call *call, double patience_s)
{
    uint64_t number = atomic_load_explicit(&call->number, memory_order_acquire);
    long long part = atomic_load_explicit(&call->part, memory_order_relaxed);
    long long sample = atomic_load_explicit(&call->sample, memory_order_relaxed);
    int function = atomic_load_explicit(&call->function, memory_order_relaxed);
    char what[128];
    if (number % 2 == 0 || number == call->named) return;
    call->named = number;
    switch ((tern__dataset_function)function) {
    case TERN__DATASET_OPEN: snprintf(what, sizeof(what), "open has not returned for part %lld", part); break;
    case TERN__DATASET_CLOSE:
        snprintf(what, sizeof(what), "close has not returned for part %lld", part);
        break;
    case TERN__DATASET_SKIP:
        snprintf(what, sizeof(what), "next has not returned sample %lld of part %lld, which is to be skipped",
                 sample, part);
        break;
    case TERN__DATASET_NEXT:
    case TERN__DATASET_GET:
        snprintf(what, sizeof(what),
                 part < 0 ? "%s has not returned sample %lld"
                          : "%s has not returned sample %lld of batch %lld",
                 function == TERN__DATASET_GET ? "get" : "next", sample, part);
    }
    tern__log(TERN_LOG_WARN, "no batch came for %g s: the dataset's %s", patience_s, what);
}

/* Waits on a condition for so many seconds. Locked. */
static void pause_for(tern__dataset_watch *watch, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_clockwait(&watch->stop, &watch->lock, CLOCK_MONOTONIC, &until);
}

/* Looks several times within the patience. A call that is the same for so long is named. */
static void *watch_calls(void *arg)
{
    tern__dataset_watch *watch = arg;
    const double looks = 4;
    uint64_t seen = 0;
    int64_t since = 0;
    pthread_mutex_lock(&watch->lock);
    while (!watch->stopping) {
        pause_for(watch, watch->patience_s / looks);
        uint64_t number = atomic_load_explicit(&watch->call->number, memory_order_relaxed);
        int64_t now = tern__now_ns();
        if (number != seen) since = now;
        seen = number;
        if ((double)(now - since) >= 1e9 * watch->patience_s)
            tern__dataset_call_name(watch->call, watch->patience_s);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

void tern__dataset_watch_start(tern__dataset_watch *watch, tern__dataset_call *call, double patience_s)
{
    *watch = (tern__dataset_watch){.call = call,
                                   .patience_s = patience_s,
                                   .lock = PTHREAD_MUTEX_INITIALIZER,
                                   .stop = PTHREAD_COND_INITIALIZER};
    watch->runs = tern__thread_new(&watch->thread, NULL, watch_calls, watch) == 0;
}

void tern__dataset_watch_stop(tern__dataset_watch *watch)
{
    if (!watch->runs) return;
    pthread_mutex_lock(&watch->lock);
    watch->stopping = true;
    pthread_cond_signal(&watch->stop);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    watch->runs = false;
}
