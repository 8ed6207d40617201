/* lanes.cc - the host's memory that a device reaches by itself, copies beside the step, and marks: a lane is
 * a stream, a mark an event. */
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

/* ---- lanes ---- */

/* Copies and messages are short, and the step will wait for them: they go first. */
int tern__cuda_lane_open(tern__cuda *cuda, tern__lane lane, tern_error *err)
{
    int last, first;
    int status = tern__cuda_check(cudaDeviceGetStreamPriorityRange(&last, &first),
                                  "cudaDeviceGetStreamPriorityRange", err);
    if (status) return status;
    int priority = lane == TERN__LANE_STEP ? last : first;
    return tern__cuda_check(cudaStreamCreateWithPriority(&cuda->lanes[lane], cudaStreamNonBlocking, priority),
                            "cudaStreamCreateWithPriority", err);
}

int tern__cuda_lane_new(tern_device *device, tern__lane *lane, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    int free = TERN__LANE_COUNT;
    while (free < TERN__LANES && cuda->lanes[free]) free++;
    if (free == TERN__LANES)
        return tern__error_set(err, "tern_device", TERN_E_RANGE, "%s has %d lanes, expected no more",
                               device->name, (int)TERN__LANES);
    *lane = (tern__lane)free;
    cudaSetDevice(cuda->index);
    return tern__cuda_lane_open(cuda, *lane, err);
}

void tern__cuda_lane_free(tern_device *device, tern__lane lane)
{
    tern__cuda *cuda = tern__cuda_of(device);
    cudaSetDevice(cuda->index);
    if (cuda->lanes[lane]) cudaStreamDestroy(cuda->lanes[lane]);
    cuda->lanes[lane] = nullptr;
}

/* What comes next in the lane comes behind all that it was asked. */
static int enter(tern_device *device, tern__lane lane, tern__cuda_hold *hold, tern_error *err)
{
    int status = lane == TERN__LANE_STEP ? tern__cuda_enter(device, hold, err) : TERN_OK;
    cudaSetDevice(tern__cuda_of(device)->index);
    return status;
}

int tern__cuda_lane_copy(tern_device *device, tern__lane lane, void *to, const void *from, size_t bytes,
                         tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = enter(device, lane, &hold, err);
    if (status) return status;
    return tern__cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->lanes[lane]),
                            "cudaMemcpyAsync", err);
}

void *tern__cuda_lane_stream(tern_device *device, tern__lane lane)
{
    if (lane == TERN__LANE_STEP) tern__cuda_flush(device, nullptr);
    return tern__cuda_of(device)->lanes[lane];
}

/* ---- marks ---- */

struct tern__mark {
    cudaEvent_t event;
};

static tern__mark *new_mark(tern_device *device, unsigned flags, tern_error *err)
{
    cudaEvent_t event;
    cudaSetDevice(tern__cuda_of(device)->index);
    if (tern__cuda_check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate", err)) return nullptr;
    return new tern__mark{event};
}

tern__mark *tern__cuda_mark_new(tern_device *device, tern_error *err)
{
    return new_mark(device, cudaEventDisableTiming, err);
}

tern__mark *tern__cuda_timer_new(tern_device *device, tern_error *err)
{
    return new_mark(device, cudaEventDefault, err);
}

void tern__cuda_mark_free(tern_device *device, tern__mark *mark)
{
    if (!mark) return;
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaEventDestroy(mark->event);
    delete mark;
}

int tern__cuda_mark_set(tern_device *device, tern__lane lane, tern__mark *mark, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = enter(device, lane, &hold, err);
    if (status) return status;
    return tern__cuda_check(cudaEventRecord(mark->event, cuda->lanes[lane]), "cudaEventRecord", err);
}

int tern__cuda_mark_follow(tern_device *device, tern__lane lane, tern__mark *mark, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = enter(device, lane, &hold, err);
    if (status) return status;
    return tern__cuda_check(cudaStreamWaitEvent(cuda->lanes[lane], mark->event), "cudaStreamWaitEvent", err);
}

int tern__cuda_mark_test(tern_device *device, tern__mark *mark, tern_error *err)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaError_t code = cudaEventQuery(mark->event);
    return code == cudaErrorNotReady ? TERN_PENDING : tern__cuda_check(code, "cudaEventQuery", err);
}

int tern__cuda_mark_wait(tern_device *device, tern__mark *mark, tern_error *err)
{
    cudaSetDevice(tern__cuda_of(device)->index);
    return tern__cuda_check(cudaEventSynchronize(mark->event), "cudaEventSynchronize", err);
}

double tern__cuda_timer_ms(tern_device *device, tern__mark *from, tern__mark *to)
{
    float ms;
    cudaSetDevice(tern__cuda_of(device)->index);
    cudaEventSynchronize(from->event);
    cudaEventSynchronize(to->event);
    return cudaEventElapsedTime(&ms, from->event, to->event) == cudaSuccess ? ms : -1;
}
