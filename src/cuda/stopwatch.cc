/* stopwatch.cc - measures candidates for a case, and names the case. */
#include "cuda/stopwatch.h"

#include <chrono>
#include <cstdio>

bool tern__stopwatch_open(tern__stopwatch *w, const tern__call *call)
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

void tern__stopwatch_close(tern__stopwatch *w)
{
    if (!w->device) return;
    tern__cuda_pool_trim(tern__cuda_of(w->device)->pool, w->mapped);
    w->device->graphs = w->graphs;
    for (cudaEvent_t event : w->events)
        if (event) cudaEventDestroy(event);
}

/* Returns the milliseconds of the fastest run up to event `last`; negative: something failed. */
static float fastest(const tern__stopwatch *w, int last)
{
    float least = -1, ms;
    bool ran = cudaEventSynchronize(w->events[last]) == cudaSuccess;
    for (int i = 0; i < last && ran; i++) {
        ran = cudaEventElapsedTime(&ms, w->events[i], w->events[i + 1]) == cudaSuccess;
        if (least < 0 || ms < least) least = ms;
    }
    cudaGetLastError(); /* clears the error, which later calls must not see */
    return ran ? least : -1;
}

/* Returns the milliseconds of the fastest of `runs` runs, since other processes may have used the device
 * during some; negative: one failed. */
static float time_runs(tern__stopwatch *w, tern__timed *run, void *ctx, int runs)
{
    int status = TERN_OK, last = 0;
    cudaEventRecord(w->events[0], w->stream);
    while (last < runs && !status) {
        status = run(ctx);
        cudaEventRecord(w->events[++last], w->stream);
    }
    float ms = fastest(w, last);
    return status ? -1 : ms;
}

/* Captures the runs as a graph; NULL: impossible. */
static cudaGraphExec_t capture(const tern__stopwatch *w, tern__timed *run, void *ctx)
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

/* The same as time_runs, for runs that follow each other as in a step's graph. The graph is launched twice:
 * the first launch keeps the device busy until the second has been given to it completely. */
static float time_graph(tern__stopwatch *w, tern__timed *run, void *ctx)
{
    const int launches = 2;
    cudaGraphExec_t exec = capture(w, run, ctx);
    bool ran = exec && cudaEventRecord(w->events[0], w->stream) == cudaSuccess;
    for (int i = 0; i < launches && ran; i++)
        ran = cudaGraphLaunch(exec, w->stream) == cudaSuccess &&
              cudaEventRecord(w->events[i + 1], w->stream) == cudaSuccess;
    float ms = ran ? fastest(w, launches) : -1;
    if (exec) cudaGraphExecDestroy(exec);
    cudaGetLastError();
    return ms < 0 ? ms : ms / TERN__STOPWATCH_RUNS;
}

bool tern__stopwatch_decides(const tern_device *device)
{
    return !device->conv.deterministic && device->choices->may_measure(device);
}

/* An idle GPU is slow at first, which would count against the first candidate. So before anything is
 * measured on a device, the first candidate that runs is repeated for 50 ms. */
static void warm_up(tern__stopwatch *w, tern__timed *run, void *ctx)
{
    tern__cuda *cuda = tern__cuda_of(w->device);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (!cuda->is_warm) {
        time_runs(w, run, ctx, TERN__STOPWATCH_RUNS);
        cuda->is_warm = std::chrono::steady_clock::now() >= until;
    }
}

/* The first run creates what is created once, and shows whether the candidate works. One that takes twice as
 * long as the best in the second run gets no more. Without a graph a short candidate would measure the host's
 * launches. */
float tern__stopwatch_try(tern__stopwatch *w, tern__timed *run, void *ctx, float best)
{
    const int runs = 3;
    const float short_ms = 0.1f;
    float ms = time_runs(w, run, ctx, 1);
    if (ms < 0 || !tern__stopwatch_decides(w->device)) return ms;
    warm_up(w, run, ctx);
    ms = time_runs(w, run, ctx, 1);
    if (ms < 0 || (best >= 0 && ms >= 2 * best && ms >= short_ms)) return ms;
    float in_graph = ms < short_ms ? time_graph(w, run, ctx) : -1;
    return in_graph < 0 ? time_runs(w, run, ctx, runs) : in_graph;
}

void tern__stopwatch_case(const char *name, const int64_t *number, size_t count, char *text, size_t size)
{
    size_t used = (size_t)std::snprintf(text, size, "%s", name);
    for (size_t i = 0; i < count && used < size; i++)
        used += (size_t)std::snprintf(text + used, size - used, " %lld", (long long)number[i]);
}
