/* trace.h - the timeline of a job: what each rank did when, in one file of Chrome's trace events ("Trace
 * Event Format", JSON array), which https://ui.perfetto.dev and chrome://tracing can show.
 *
 * In the timeline a rank is a process with number rank + 1, and its tracks are threads. Events are collected
 * in a buffer of fixed size and appended, whole lines at a time, to the file that all ranks share. Rank 0
 * creates the file; the last rank to close it writes its end. A NULL trace is off, and all functions accept
 * it.
 *
 * Threads: any. */
#ifndef TERN_SRC_TRACE_H
#define TERN_SRC_TRACE_H

#include "base/base.h"

typedef struct tern__trace tern__trace;

typedef enum tern__track {
    TERN__TRACK_COMPUTE, /* forward, backward, optimizer step, and the kernels in them */
    TERN__TRACK_BUCKETS, /* a bucket is ready: its gradients have been computed        */
    TERN__TRACK_REDUCE,  /* this rank reduces                                          */
    TERN__TRACK_WAIT,    /* this rank waits for others, and reduces while it waits     */
    TERN__TRACK_COUNT
} tern__track;

#define TERN__TRACE_ARGS    3
#define TERN__TRACE_THREADS 1000 /* track t of rank r is thread 1000 * (r + 1) + 1 + t */

typedef struct tern__trace_event {
    const char *name; /* static storage */
    tern__track track;
    int64_t began, ended; /* ns; `ended` 0: an instant */
    struct {
        const char *key; /* static storage, needs no escapes; NULL: no more args */
        int64_t value;
    } args[TERN__TRACE_ARGS];
} tern__trace_event;

/* Rank 0 creates `path`; the other ranks may open it once rank 0 has returned. A failure is a warning, and
 * returns NULL. Close it with tern__trace_close. */
tern__trace *tern__trace_open(const char *path, int rank);
/* Writes and frees; in a forked child it only frees. */
void tern__trace_close(tern__trace *trace);

void tern__trace_add(tern__trace *trace, const tern__trace_event *event);
/* Writes the collected events to the file. */
void tern__trace_flush(tern__trace *trace);

/* Returns the time, or 0 if the trace is off. */
static inline int64_t tern__trace_now(const tern__trace *trace)
{
    return trace ? tern__now_ns() : 0;
}

/* Adds an event from `began`, a result of tern__trace_now, until now. */
static inline void tern__trace_span(tern__trace *trace, tern__track track, const char *name, int64_t began)
{
    if (trace) tern__trace_add(trace, &(tern__trace_event){name, track, began, tern__now_ns(), {{0}}});
}

#endif
