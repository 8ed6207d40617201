/* dataset_call.h - which of a dataset's functions a thread is in, so that one that does not return can be
 * named: by a thread that waits for it, or else by a watch. */
#ifndef TERN_SRC_DATA_DATASET_CALL_H
#define TERN_SRC_DATA_DATASET_CALL_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

#define TERN__PATIENCE_S 60 /* far above what a slow disk or a large volume takes */

typedef enum tern__dataset_function {
    TERN__DATASET_GET,  /* part: the batch, -1 if there is none; sample: its index        */
    TERN__DATASET_OPEN, /* part: that is opened; sample: unused                           */
    TERN__DATASET_SKIP, /* `next`, for a sample that a resumed pass has used already      */
    TERN__DATASET_NEXT, /* part: the batch; sample: its place in the batch                */
    TERN__DATASET_CLOSE /* part: that is closed; sample: unused                           */
} tern__dataset_function;

/* The latest call of a thread. Other threads may read it while the thread sets it: then they name a mixture
 * of two calls, which both belong to the work that takes long. */
typedef struct tern__dataset_call {
    _Atomic(uint64_t) number; /* even: no call; each begin and end adds 1 */
    _Atomic(int) function;
    _Atomic(int64_t) part, sample;
    uint64_t named; /* the number of the call that was named last; for the one thread that names */
} tern__dataset_call;

static inline void tern__dataset_call_begin(tern__dataset_call *call, tern__dataset_function function,
                                            int64_t part, int64_t sample)
{
    uint64_t number = atomic_load_explicit(&call->number, memory_order_relaxed);
    atomic_store_explicit(&call->function, (int)function, memory_order_relaxed);
    atomic_store_explicit(&call->part, part, memory_order_relaxed);
    atomic_store_explicit(&call->sample, sample, memory_order_relaxed);
    atomic_store_explicit(&call->number, number + 1, memory_order_release);
}

static inline void tern__dataset_call_end(tern__dataset_call *call)
{
    uint64_t number = atomic_load_explicit(&call->number, memory_order_relaxed);
    atomic_store_explicit(&call->number, number + 1, memory_order_release);
}

/* Logs a warning that names the running call, unless there is none or it was named before. `patience_s` is
 * the time that has passed. */
void tern__dataset_call_name(tern__dataset_call *call, double patience_s);

/* A thread that names calls of another thread that nobody waits for. It sleeps, and the calls do nothing for
 * it, so it costs no time. Without the thread (a limit, say) nothing is named. */
typedef struct tern__dataset_watch {
    tern__dataset_call *call;
    double patience_s; /* names a call that takes longer */
    bool runs, stopping;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop;
} tern__dataset_watch;

void tern__dataset_watch_start(tern__dataset_watch *watch, tern__dataset_call *call, double patience_s);
void tern__dataset_watch_stop(tern__dataset_watch *watch);

/* The patience of tern_readable_new; tests shorten it. */
extern double tern__readable_patience_s;

#endif
