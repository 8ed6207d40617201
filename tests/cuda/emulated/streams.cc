/* streams.cc - streams and events. The stream of the lowest priority, the step's, runs its work at once
 * unless it has to wait for another stream. The others keep their work until an event that somebody waits
 * for comes after it, or forever if nobody does. Streams in which other ranks are waited for progress
 * while the host waits. With TERN_EMULATED_ASYNC in the environment the step's stream defers work as well:
 * a GPU that is as far behind the host as possible. */
#include "cuda_runtime.h"
#include "graphs.h"
#include "memory.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

enum { LAST = 0, FIRST = -5 };

struct emulated_stream {
    const emulated_library *library; /* first */
    bool is_beside;                  /* not the step's stream */
    bool is_late;
    std::deque<std::function<bool()>> queue;
    uint64_t asked, done;
    int device;
    cudaGraph_t captures; /* NULL: none */
};
struct emulated_event {
    emulated_stream *stream; /* NULL: never recorded */
    uint64_t place;
    bool is_timed;
    std::shared_ptr<double> ms; /* when it was passed; NULL: never recorded, or not timed */
    int device;
};

thread_local double emulated_ms;
thread_local bool emulated_captures;
static thread_local int current;

static std::recursive_mutex lock;
static std::map<const char *, size_t> pinned;
static std::set<const char *> allocated; /* those from cudaHostAlloc */

static std::set<emulated_stream *> meeting; /* streams in which other ranks are waited for */

/* Destroyed streams, kept for events that may still be queried. */
static std::vector<std::unique_ptr<emulated_stream>> gone;

/* Runs what can be run, up to `place`; true when that is reached. */
static bool advance(emulated_stream *stream, uint64_t place)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    while (stream && stream->done < place && stream->queue.front()()) {
        stream->queue.pop_front();
        stream->done++;
    }
    return !stream || stream->done >= place;
}

/* Progresses these streams: another rank may wait for any of them before what this one waits for. */
static void meet_others()
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    for (emulated_stream *stream : meeting) advance(stream, stream->asked);
}

/* Releases the lock in between for other threads, which may end the waiting. */
static void run_until(emulated_stream *stream, uint64_t place)
{
    for (; !advance(stream, place); usleep(20)) meet_others();
}

static void enqueue(cudaStream_t stream, std::function<bool()> work)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    stream->queue.push_back(std::move(work));
    stream->asked++;
    if (!stream->is_late) advance(stream, stream->asked);
}

static void enqueue_meeting(cudaStream_t stream, std::function<bool()> work)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    meeting.insert(stream);
    enqueue(stream, std::move(work));
}

static void put(emulated_stream *stream, std::function<void()> work)
{
    enqueue(stream, [work] {
        work();
        return true;
    });
}

void emulated_enqueue(cudaStream_t stream, std::function<void()> work)
{
    if (stream->captures) return emulated_graph_add(stream->captures, std::move(work));
    emulated_counted.others++;
    put(stream, std::move(work));
}

static void forbid(bool is_wrong, const char *what)
{
    if (!is_wrong) return;
    std::fprintf(stderr, "emulated: %s\n", what);
    std::abort();
}

static const emulated_library library = {enqueue_meeting, emulated_memory_open, emulated_memory_close,
                                         emulated_memory_has, emulated_memory_is_one};

/* ---- kernels and graphs ---- */

cudaError_t cudaSetDevice(int index)
{
    current = index;
    return emulated_refuses("runtime") ? cudaErrorCudartUnloading : cudaSuccess;
}

static std::vector<emulated_stream *> meeting_on(int device)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    std::vector<emulated_stream *> found;
    for (emulated_stream *stream : meeting)
        if (stream->device == device) found.push_back(stream);
    return found;
}

static bool is_loaded(const void *kernel)
{
    static std::set<const void *> loaded;
    std::lock_guard<std::recursive_mutex> hold(lock);
    return !loaded.insert(kernel).second;
}

/* With TERN_EMULATED_LAZY a kernel is loaded at its first launch, as in CUDA; the host may then have to
 * wait until the device is idle. */
static void load(const void *kernel, int device)
{
    if (is_loaded(kernel) || !std::getenv("TERN_EMULATED_LAZY")) return;
    for (emulated_stream *stream : meeting_on(device)) run_until(stream, stream->asked);
}

cudaError_t emulated_ask(const emulated_kernel &kernel, void **args, cudaStream_t stream)
{
    load(kernel.kernel, stream->device);
    std::lock_guard<std::recursive_mutex> hold(lock);
    emulated_counted.overlapping += kernel.overlaps;
    emulated_counted.clusters += kernel.cluster > 1;
    forbid(current != stream->device, "a kernel in the stream of a device that is not the current one");
    if (stream->captures) {
        emulated_graph_add_kernel(stream->captures, kernel, args);
        return cudaSuccess;
    }
    emulated_counted.kernels++;
    forbid(stream->is_beside, "a kernel in a stream beside the step's");
    put(stream, emulated_kernel_work(kernel, args));
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    forbid(stream->captures, "a capture in a capture");
    stream->captures = emulated_graph_new();
    emulated_captures = true;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *, cudaGraph_t *, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **, size_t *count)
{
    *status = stream->captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (stream->captures) *count = emulated_graph_last(stream->captures, nodes);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    forbid(!stream->captures, "the end of a capture that never began");
    *graph = stream->captures;
    stream->captures = nullptr;
    emulated_captures = false;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    forbid(stream->captures, "a graph launched in a capture");
    forbid(current != stream->device, "a graph in the stream of a device that is not the current one");
    emulated_counted.graphs++;
    put(stream, emulated_exec_work(exec));
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *last, int *first)
{
    *last = LAST;
    *first = FIRST;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority)
{
    bool is_beside = priority != LAST, is_late = is_beside || std::getenv("TERN_EMULATED_ASYNC");
    *stream = new emulated_stream{&library, is_beside, is_late, {}, 0, 0, current, nullptr};
    return cudaSuccess;
}

/* How often the host has waited, including for reads; tests look it up. */
extern "C" __attribute__((visibility("default"))) long emulated_waits;
long emulated_waits;

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    forbid(stream->captures, "a wait for a stream that is captured");
    emulated_waits++;
    run_until(stream, stream->asked);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaStreamSynchronize(stream);
    std::lock_guard<std::recursive_mutex> hold(lock);
    meeting.erase(stream);
    gone.emplace_back(stream);
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = new emulated_event{nullptr, 0, flags == cudaEventDefault, nullptr, current};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->ms || !to->ms) return cudaErrorInvalidValue;
    for (const emulated_event *event : {from, to})
        if (event->stream->done < event->place) return cudaErrorNotReady;
    *ms = (float)(*to->ms - *from->ms);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    forbid(stream->captures, "an event in a capture");
    forbid(event->device != stream->device, "an event in the stream of a device that is not its own");
    if (event->is_timed) {
        auto ms = event->ms = std::make_shared<double>();
        put(stream, [ms] { *ms = emulated_ms; });
    }
    event->stream = stream;
    event->place = stream->asked;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    emulated_event at = *event;
    forbid(stream->captures, "a wait for an event in a capture");
    if (at.stream != stream) enqueue(stream, [at] { return advance(at.stream, at.place); });
    return cudaSuccess;
}

/* Repeated queries make progress. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    emulated_stream *stream = event->stream;
    if (stream && stream->done < event->place) advance(stream, stream->done + 1);
    return stream && stream->done < event->place ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulated_waits++;
    run_until(event->stream, event->place);
    return cudaSuccess;
}

/* ---- copies ---- */

static void copy(void *to, const void *from, size_t bytes)
{
    emulated_memory_open();
    std::memmove(to, from, bytes);
    emulated_memory_close();
    emulated_ms += (double)bytes * 1e-6;
}

static bool is_pinned(const void *data, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto next = pinned.upper_bound((const char *)data);
    if (next == pinned.begin()) return false;
    auto range = std::prev(next);
    return (const char *)data + bytes <= range->first + range->second;
}

static bool is_pageable(const void *data, size_t bytes)
{
    return !emulated_memory_has(data) && !is_pinned(data, bytes);
}

/* Ends the program for pageable memory, since such a copy would block the host. */
static void expect_pinned(const void *data, size_t bytes)
{
    forbid(is_pageable(data, bytes),
           "a copy of pageable memory in a stream beside the step's, or in a capture");
}

/* Checks the kind; cudaMemcpyDefault is derived from the addresses. */
static bool is_kind(cudaMemcpyKind kind, const void *to, const void *from)
{
    bool is_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool is_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault ||
           (emulated_memory_has(to) == is_to && emulated_memory_has(from) == is_from);
}

/* Pageable memory has been read when the call returns. */
static void ask_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    forbid(!is_kind(kind, to, from), "a copy of another kind than it is said to be");
    if (stream->is_beside || stream->captures) {
        expect_pinned(to, bytes);
        expect_pinned(from, bytes);
    }
    forbid(!emulated_memory_joined(to, from), "a copy from a GPU's memory that this one may not use");
    auto read = is_pageable(from, bytes) ? std::make_shared<std::string>((const char *)from, bytes) : nullptr;
    emulated_enqueue(stream, [=] { copy(to, read ? read->data() : from, bytes); });
}

/* Pageable memory has been written as well. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    ask_copy(to, from, bytes, kind, stream);
    if (is_pageable(to, bytes)) run_until(stream, stream->asked);
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    emulated_enqueue(stream, [=] { copy(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    emulated_enqueue(stream, [=] {
        emulated_memory_open();
        std::memset(to, value, bytes);
        emulated_memory_close();
    });
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    emulated_counted.looks++;
    *left = emulated_memory_left(current);
    *total = EMULATED_MEMORY;
    return cudaSuccess;
}

/* ---- host memory ---- */

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *data)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    attributes->type = emulated_memory_has(data) ? cudaMemoryTypeDevice
                       : is_pinned(data, 1)      ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* Whether any page is registered already; none may be registered twice. */
static bool is_registered(const void *base, size_t bytes)
{
    const uintptr_t page = 4096, first = (uintptr_t)base / page;
    const uintptr_t last = ((uintptr_t)base + bytes - 1) / page;
    for (const auto &range : pinned)
        if ((uintptr_t)range.first / page <= last &&
            ((uintptr_t)range.first + range.second - 1) / page >= first && !allocated.count(range.first))
            return true;
    return false;
}

cudaError_t cudaHostRegister(void *base, size_t bytes, unsigned)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (is_registered(base, bytes)) return cudaErrorHostMemoryAlreadyRegistered;
    pinned.emplace((const char *)base, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *base)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    return pinned.erase((const char *)base) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    *data = std::malloc(bytes);
    if (!*data) return cudaErrorMemoryAllocation;
    std::memset(*data, 0xff, bytes);
    pinned.emplace((const char *)*data, bytes);
    allocated.insert((const char *)*data);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    pinned.erase((const char *)data);
    allocated.erase((const char *)data);
    std::free(data);
    return cudaSuccess;
}
