/* stopwatch.h - measures how long something takes on a device's step stream. Memory that was allocated and
 * freed while the stopwatch is open is unmapped: algorithms that are not chosen may have used much. */
#ifndef TERN_SRC_CUDA_STOPWATCH_H
#define TERN_SRC_CUDA_STOPWATCH_H

#include "cuda/graph.h"
#include "cuda/pool.h"

extern "C" {
#include "device/choices.h"
}

enum { TERN__STOPWATCH_RUNS = 10 };

typedef struct tern__stopwatch {
    tern_device *device; /* NULL: not open */
    bool graphs;         /* the device's setting; it launches no graphs while measuring */
    cudaStream_t stream;
    uint64_t mapped;                              /* the pool's count when the stopwatch was opened */
    cudaEvent_t events[TERN__STOPWATCH_RUNS + 1]; /* before the first run and after each */
} tern__stopwatch;

/* _open returns false if events cannot be created; _close is needed even then. */
bool tern__stopwatch_open(tern__stopwatch *w, const tern__call *call);
void tern__stopwatch_close(tern__stopwatch *w);

/* Whether the device may measure (device/choices.h). */
bool tern__stopwatch_decides(const tern_device *device);

/* The function that is measured; returns a status. */
typedef int tern__timed(void *ctx);

/* Measures a candidate and returns its milliseconds, or only runs it if the device may not measure; negative:
 * it failed. `best` is the least so far, or negative. */
float tern__stopwatch_try(tern__stopwatch *w, tern__timed *run, void *ctx, float best);

/* Writes a case as its name and numbers, under which the device's choices keep it. */
void tern__stopwatch_case(const char *name, const int64_t *number, size_t count, char *text, size_t size);

#endif
