/* worker.c - the thread of a device that is a group of cores. It sleeps until it is given a call, runs it
 * on its cores and sleeps again. OpenMP keeps one team per thread that starts one, so two such devices
 * have separate teams, each on its own cores. */
#include "device/device.h"

#include "base/cores.h"
#include "base/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct tern__worker {
    pthread_t thread;
    pid_t pid; /* the process that has the thread; a forked child does not */
    cpu_set_t cores;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*fn)(void *ctx); /* the current call; NULL: idle */
    void *ctx;
    bool ending;
} tern__worker;

/* ---- which cores ---- */

/* Returns the `index`-th core that this process may use; -1: there are fewer. */
static int core_at(const cpu_set_t *allowed, long index)
{
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, allowed) && index-- == 0) return core;
    return -1;
}

static int add_range(cpu_set_t *cores, const cpu_set_t *allowed, long first, long last, const char *list,
                     tern_error *err)
{
    for (long index = first; index <= last; index++) {
        int core = core_at(allowed, index);
        if (core < 0)
            return tern__error_set(err, "tern_device_open", TERN_E_RANGE,
                                   "device \"cpu:%s\": this process may use %d cores, 0 to %d", list,
                                   CPU_COUNT(allowed), CPU_COUNT(allowed) - 1);
        CPU_SET(core, cores);
    }
    return TERN_OK;
}

static int worker_parse(const char *list, cpu_set_t *cores, tern_error *err)
{
    cpu_set_t allowed;
    CPU_ZERO(cores);
    if (tern__cores_get(&allowed))
        return tern__error_errno(err, "tern_device_open", TERN_E_SYSTEM,
                                 "cannot read this process's CPU affinity");
    for (const char *at = list;; at++) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        bool is_number = end > at && *at != '-';
        if (is_number && *end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            is_number = end > at && *at != '-' && last >= first;
        }
        if (!is_number || (*end && *end != ','))
            return tern__error_set(err, "tern_device_open", TERN_E_UNSUPPORTED,
                                   "device \"cpu:%s\": expected a list of cores as 0 or 0-3 or 1,3", list);
        int status = add_range(cores, &allowed, first, last, list, err);
        if (status || !*end) return status;
        at = end;
    }
}

/* ---- the thread ---- */

static void *worker_serve(void *self)
{
    tern__worker *worker = self;
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (!worker->fn && !worker->ending) pthread_cond_wait(&worker->changed, &worker->lock);
        if (worker->ending) break;
        pthread_mutex_unlock(&worker->lock);
        worker->fn(worker->ctx);
        pthread_mutex_lock(&worker->lock);
        worker->fn = NULL;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

static int worker_launch(tern__worker *worker, tern_error *err)
{
    int status = tern__thread_new(&worker->thread, &worker->cores, worker_serve, worker);
    if (!status) return TERN_OK;
    errno = status;
    return tern__error_errno(err, "tern_device_open", TERN_E_SYSTEM, "cannot start the device's thread");
}

tern__worker *tern__worker_new(const char *list, int *count, tern_error *err)
{
    cpu_set_t cores;
    if (worker_parse(list, &cores, err)) return NULL;
    tern__worker *worker = tern__alloc(sizeof(*worker), "tern_device_open", err);
    if (!worker) return NULL;
    worker->pid = getpid();
    worker->cores = cores;
    *count = CPU_COUNT(&cores);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->changed, NULL);
    if (worker_launch(worker, err) == TERN_OK) return worker;
    tern__free(worker);
    return NULL;
}

static void worker_end(tern__worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->ending = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->lock);
}

/* A forked child must not end the thread: it does not exist there, but the copied condition variable has it
 * as a waiter. */
void tern__worker_free(tern__worker *worker)
{
    if (worker && worker->pid == getpid()) worker_end(worker);
    tern__free(worker);
}

/* OpenMP binds every team to the same places: new threads of this device are moved back to its cores. */
void tern__device_gather(const tern_device *device)
{
    static _Thread_local bool is_here;
    const tern__worker *worker = device->worker;
    if (!worker || !tern__cores_are_placed() || !pthread_equal(worker->thread, pthread_self())) return;
#pragma omp parallel num_threads(device->threads)
    if (!is_here) is_here = sched_setaffinity(0, sizeof(worker->cores), &worker->cores) == 0;
}

/* ---- calls ---- */

/* A forked child has the device, but not its thread, so kernels run in the calling thread. */
bool tern__device_is_here(const tern_device *device)
{
    const tern__worker *worker = device->worker;
    return !worker || pthread_equal(worker->thread, pthread_self()) || worker->pid != getpid();
}

void tern__device_start(tern_device *device, void (*fn)(void *ctx), void *ctx)
{
    if (tern__device_is_here(device)) {
        fn(ctx);
        return;
    }
    tern__worker *worker = device->worker;
    pthread_mutex_lock(&worker->lock);
    worker->fn = fn;
    worker->ctx = ctx;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
}

void tern__device_await(tern_device *device)
{
    if (tern__device_is_here(device)) return;
    tern__worker *worker = device->worker;
    pthread_mutex_lock(&worker->lock);
    while (worker->fn) pthread_cond_wait(&worker->changed, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
}
