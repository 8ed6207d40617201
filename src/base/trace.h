/* trace.h - the timeline of a job: what each rank did when, in one file of Chrome's trace events
 * ("Trace Event Format", JSON array), which https://ui.perfetto.dev and chrome://tracing show.
 *
 * A rank is a process of the timeline, with number rank + 1, and has a few tracks, which are its threads. Its
 * events go into memory of a fixed size and from there, whole lines at a time, to the end of the file that
 * all ranks write. Rank 0 begins the file; whoever is the last to close it ends it. NULL is a trace that is
 * off: every function takes it.
 *
 * Threads: any. */
#ifndef TERN_SRC_TRACE_H
#define TERN_SRC_TRACE_H

#include "base/base.h"

typedef struct tern__trace tern__trace;

typedef enum tern__track {
    TERN__TRACK_COMPUTE, /* forward, backward, optimizer step, and the kernels in them */
    TERN__TRACK_BUCKETS, /* a bucket is ready: its gradients are written               */
    TERN__TRACK_REDUCE,  /* this rank reduces                                          */
    TERN__TRACK_WAIT,    /* this rank waits for others, or reduces meanwhile           */
    TERN__TRACK_COUNT
} tern__track;

#define TERN__TRACE_ARGS    3
#define TERN__TRACE_THREADS 1000 /* track t of rank r is thread 1000 * (r + 1) + 1 + t */

typedef struct tern__trace_event {
    const char *name; /* static storage */
    tern__track track;
    int64_t began, ended; /* ns; `ended` 0: an instant */
    struct {
        const char *key; /* static storage, in need of no escape; NULL: there are no more */
        int64_t value;
    } args[TERN__TRACE_ARGS];
} tern__trace_event;

/* Rank 0 begins `path` anew; the others, once it has returned there, add to it. After a failure says so in a
 * warning and returns NULL. Yours: tern__trace_close. */
tern__trace *tern__trace_open(const char *path, int rank);
/* In a forked child it only frees. */
void tern__trace_close(tern__trace *trace);

void tern__trace_add(tern__trace *trace, const tern__trace_event *event);
/* What was added goes to the file. */
void tern__trace_flush(tern__trace *trace);

/* The time, where somebody wants to know it. */
static inline int64_t tern__trace_now(const tern__trace *trace)
{
    return trace ? tern__now_ns() : 0;
}

/* From `began`, of tern__trace_now, until now. */
static inline void tern__trace_span(tern__trace *trace, tern__track track, const char *name, int64_t began)
{
    if (trace) tern__trace_add(trace, &(tern__trace_event){name, track, began, tern__now_ns(), {{0}}});
}

#endif
