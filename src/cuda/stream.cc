/* stream.cc - pinned host memory, streams beside the step's, and events. */
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/runtime.h"

/* ---- the host's memory ---- */

void *tern__cuda_pinned_new(tern_device *device, size_t bytes)
{
    void *data = nullptr;
    cudaSetDevice(tern__cuda_of(device)->index);
    return cudaHostAlloc(&data, bytes, cudaHostAllocPortable) == cudaSuccess ? data : nullptr;
}

void tern__cuda_pinned_free(tern_device *device, void *data)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    if (data) cudaFreeHost(data);
}

int tern__cuda_pin(tern_device *device, void *base, size_t bytes, tern_error *err)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    return tern__cuda_check(cudaHostRegister(base, bytes, cudaHostRegisterPortable), "cudaHostRegister", err);
}

void tern__cuda_unpin(tern_device *device, void *base)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaHostUnregister(base);
}

/* ---- streams ---- */

/* Copies and messages are short and the step waits for them, so their streams have the higher priority. */
int tern__cuda_stream_open(tern__cuda *cuda, tern__device_stream stream, tern_error *err)
{
    int last, first;
    int status = tern__cuda_check(cudaDeviceGetStreamPriorityRange(&last, &first),
                                  "cudaDeviceGetStreamPriorityRange", err);
    if (status) return status;
    int priority = stream == TERN__STREAM_STEP ? last : first;
    return tern__cuda_check(
        cudaStreamCreateWithPriority(&cuda->streams[stream], cudaStreamNonBlocking, priority),
        "cudaStreamCreateWithPriority", err);
}

int tern__cuda_stream_new(tern_device *device, tern__device_stream *stream, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    int free = TERN__STREAM_COUNT;
    while (free < TERN__STREAMS && cuda->streams[free]) free++;
    if (free == TERN__STREAMS)
        return tern__error_set(err, "tern_device", TERN_E_RANGE, "%s: all %d streams are in use",
                               device->name, (int)TERN__STREAMS);
    *stream = (tern__device_stream)free;
    cudaSetDevice(cuda->index);
    return tern__cuda_stream_open(cuda, *stream, err);
}

void tern__cuda_stream_free(tern_device *device, tern__device_stream stream)
{
    tern__cuda *cuda = tern__cuda_of(device);
    cudaSetDevice(cuda->index);
    if (cuda->streams[stream]) cudaStreamDestroy(cuda->streams[stream]);
    cuda->streams[stream] = nullptr;
}

/* Launches what the step has recorded so far, so that the next call on its stream comes after it. */
static int enter(tern_device *device, tern__device_stream stream, tern__cuda_hold *hold, tern_error *err)
{
    int status = stream == TERN__STREAM_STEP ? tern__cuda_enter(device, hold, err) : TERN_OK;
    cudaSetDevice(tern__cuda_of(device)->index);
    return status;
}

int tern__cuda_stream_copy(tern_device *device, tern__device_stream stream, void *to, const void *from,
                           size_t bytes, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = enter(device, stream, &hold, err);
    if (status) return status;
    return tern__cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->streams[stream]),
                            "cudaMemcpyAsync", err);
}

void *tern__cuda_stream_native(tern_device *device, tern__device_stream stream)
{
    if (stream == TERN__STREAM_STEP) tern__cuda_flush(device, nullptr);
    return tern__cuda_of(device)->streams[stream];
}

/* ---- events ---- */

struct tern__device_event {
    cudaEvent_t event;
};

static tern__device_event *new_event(tern_device *device, unsigned flags, tern_error *err)
{
    cudaEvent_t event;
    cudaSetDevice(tern__cuda_of(device)->index);
    if (tern__cuda_check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate", err)) return nullptr;
    return new tern__device_event{event};
}

tern__device_event *tern__cuda_event_new(tern_device *device, tern_error *err)
{
    return new_event(device, cudaEventDisableTiming, err);
}

tern__device_event *tern__cuda_timer_new(tern_device *device, tern_error *err)
{
    return new_event(device, cudaEventDefault, err);
}

void tern__cuda_event_free(tern_device *device, tern__device_event *event)
{
    if (!event) return;
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaEventDestroy(event->event);
    delete event;
}

int tern__cuda_event_record(tern_device *device, tern__device_stream stream, tern__device_event *event,
                            tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = enter(device, stream, &hold, err);
    if (status) return status;
    return tern__cuda_check(cudaEventRecord(event->event, cuda->streams[stream]), "cudaEventRecord", err);
}

int tern__cuda_stream_wait(tern_device *device, tern__device_stream stream, tern__device_event *event,
                           tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = enter(device, stream, &hold, err);
    if (status) return status;
    return tern__cuda_check(cudaStreamWaitEvent(cuda->streams[stream], event->event), "cudaStreamWaitEvent",
                            err);
}

int tern__cuda_event_query(tern_device *device, tern__device_event *event, tern_error *err)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaError_t code = cudaEventQuery(event->event);
    return code == cudaErrorNotReady ? TERN_PENDING : tern__cuda_check(code, "cudaEventQuery", err);
}

int tern__cuda_event_wait(tern_device *device, tern__device_event *event, tern_error *err)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    return tern__cuda_check(cudaEventSynchronize(event->event), "cudaEventSynchronize", err);
}

double tern__cuda_timer_ms(tern_device *device, tern__device_event *from, tern__device_event *to)
{
    float ms;
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaEventSynchronize(from->event);
    cudaEventSynchronize(to->event);
    return cudaEventElapsedTime(&ms, from->event, to->event) == cudaSuccess ? ms : -1;
}
