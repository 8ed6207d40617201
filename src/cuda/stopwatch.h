/* stopwatch.h - how long something takes on the stream of a device's steps. What is allocated while it is
 * open and given back leaves no memory mapped: who is not chosen may have wanted much. */
#ifndef TERN_SRC_CUDA_STOPWATCH_H
#define TERN_SRC_CUDA_STOPWATCH_H

#include "cuda/graph.h"
#include "cuda/pool.h"

extern "C" {
#include "device/notes.h"
}

#include <chrono>

enum { TERN__STOPWATCH_RUNS = 10 };

typedef struct tern__stopwatch {
    tern_device *device; /* NULL: not open */
    bool graphs;         /* the device's, which launches none while something is timed */
    cudaStream_t stream;
    uint64_t mapped;                              /* blocks of the pool, when it was opened */
    cudaEvent_t events[TERN__STOPWATCH_RUNS + 1]; /* before the first run, and behind each  */
} tern__stopwatch;

static inline bool tern__stopwatch_open(tern__stopwatch *w, const tern__call *call)
{
    tern__cuda *cuda = tern__cuda_of(call->device);
    bool is_well = true;
    *w = {call->device, call->device->graphs, cuda->stream, 0, {}};
    tern__cuda_flush(w->device, nullptr);
    w->mapped = tern__cuda_pool_mapped(cuda->pool);
    cudaSetDevice(cuda->index);
    w->device->graphs = false;
    for (cudaEvent_t &event : w->events) is_well &= cudaEventCreate(&event) == cudaSuccess;
    return is_well;
}

static inline void tern__stopwatch_close(tern__stopwatch *w)
{
    if (!w->device) return;
    tern__cuda_pool_trim(tern__cuda_of(w->device)->pool, w->mapped);
    w->device->graphs = w->graphs;
    for (cudaEvent_t event : w->events)
        if (event) cudaEventDestroy(event);
}

/* What is timed; returns a status. */
typedef int tern__timed(void *ctx);

/* Milliseconds between two events, the fewest of all that are next to each other up to the last; negative if
 * something failed. */
static inline float tern__stopwatch_least(const tern__stopwatch *w, int last)
{
    float least = -1, ms;
    bool ran = cudaEventSynchronize(w->events[last]) == cudaSuccess;
    for (int i = 0; i < last && ran; i++) {
        ran = cudaEventElapsedTime(&ms, w->events[i], w->events[i + 1]) == cudaSuccess;
        if (least < 0 || ms < least) least = ms;
    }
    cudaGetLastError(); /* what failed here is nobody else's failure */
    return ran ? least : -1;
}

/* Milliseconds of the fastest of so many runs, as others may have had a part of the device in some; negative
 * if one failed. */
static inline float tern__stopwatch_time(tern__stopwatch *w, tern__timed *run, void *ctx, int runs)
{
    int status = TERN_OK, last = 0;
    cudaEventRecord(w->events[0], w->stream);
    while (last < runs && !status) {
        status = run(ctx);
        cudaEventRecord(w->events[++last], w->stream);
    }
    float ms = tern__stopwatch_least(w, last);
    return status ? -1 : ms;
}

/* NULL where one cannot be made of them. */
static inline cudaGraphExec_t tern__stopwatch_graph(const tern__stopwatch *w, tern__timed *run, void *ctx)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    int status = TERN_OK;
    if (!tern__cuda_of(w->device)->has_graphs) return nullptr;
    if (cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return nullptr;
    for (int i = 0; i < TERN__STOPWATCH_RUNS && !status; i++) status = run(ctx);
    bool is_well = cudaStreamEndCapture(w->stream, &graph) == cudaSuccess && !status;
    if (is_well && cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) exec = nullptr;
    if (graph) cudaGraphDestroy(graph);
    return exec;
}

/* The same of runs that follow each other as in a graph of a step, whose first launch keeps the device busy
 * until all of the second has been asked for. */
static inline float tern__stopwatch_time_graph(tern__stopwatch *w, tern__timed *run, void *ctx)
{
    const int launches = 2;
    cudaGraphExec_t exec = tern__stopwatch_graph(w, run, ctx);
    bool ran = exec && cudaEventRecord(w->events[0], w->stream) == cudaSuccess;
    for (int i = 0; i < launches && ran; i++)
        ran = cudaGraphLaunch(exec, w->stream) == cudaSuccess &&
              cudaEventRecord(w->events[i + 1], w->stream) == cudaSuccess;
    float ms = ran ? tern__stopwatch_least(w, launches) : -1;
    if (exec) cudaGraphExecDestroy(exec);
    cudaGetLastError();
    return ms < 0 ? ms : ms / TERN__STOPWATCH_RUNS;
}

/* Do clocks decide on the device? Not any more where it knows so many cases that a run's every step must have
 * new ones. */
static inline bool tern__stopwatch_decides(const tern_device *device)
{
    return !device->conv.deterministic && !device->follows && !device->notes->is_full;
}

/* A GPU that has rested is slow at first, and whoever comes first would seem to be: before all that is ever
 * measured on a device the first who can repeats his for 50 ms. */
static inline void tern__stopwatch_warm_up(tern__stopwatch *w, tern__timed *run, void *ctx)
{
    tern__cuda *cuda = tern__cuda_of(w->device);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (!cuda->is_warm) {
        tern__stopwatch_time(w, run, ctx, TERN__STOPWATCH_RUNS);
        cuda->is_warm = std::chrono::steady_clock::now() >= until;
    }
}

/* The first run makes what is made once, and shows whether it can; who takes twice as long as the best in the
 * second has no more. What is short lasts as long as the host takes to ask for it, if it is not a graph. */
static inline float tern__stopwatch_try(tern__stopwatch *w, tern__timed *run, void *ctx, float best)
{
    const int runs = 3;
    const float short_ms = 0.1f;
    float ms = tern__stopwatch_time(w, run, ctx, 1);
    if (ms < 0 || !tern__stopwatch_decides(w->device)) return ms;
    tern__stopwatch_warm_up(w, run, ctx);
    ms = tern__stopwatch_time(w, run, ctx, 1);
    if (ms < 0 || (best >= 0 && ms >= 2 * best && ms >= short_ms)) return ms;
    float in_graph = ms < short_ms ? tern__stopwatch_time_graph(w, run, ctx) : -1;
    return in_graph < 0 ? tern__stopwatch_time(w, run, ctx, runs) : in_graph;
}

#endif
