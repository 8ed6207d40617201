/* device.cc - opens and closes a GPU; copies and waits. */
#include "cuda/device.h"
#include "cuda/capability.h"
#include "cuda/cublas/cublas.h"
#include "cuda/cudnn/cudnn.h"
#include "cuda/graph.h"
#include "cuda/pool.h"
#include "cuda/without.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

/* CUDA reads this setting at its start. Streams that share a hardware queue wait for each other, and there
 * are eight queues by default. A message's stream must not wait for another one's (comm/nccl/mailbox.c). */
static void ask_for_queues(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int tern__cuda_count(tern_error *err)
{
    int found = 0;
    ask_for_queues();
    cudaError_t code = cudaGetDeviceCount(&found);
    if (code == cudaErrorNoDevice) return 0;
    if (code == cudaErrorInsufficientDriver)
        return tern__error_set(err, "tern_device_open", TERN_E_UNSUPPORTED,
                               "NVIDIA's driver (libcuda.so.1) is missing or older than CUDA %d.%d: %s",
                               CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, cudaGetErrorString(code));
    int status = tern__cuda_check(code, "cudaGetDeviceCount", err);
    return status ? status : found;
}

void tern__cuda_describe(int index, char *text, size_t size)
{
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, index) != cudaSuccess) {
        std::snprintf(text, size, "?");
        return;
    }
    std::snprintf(text, size, "%s, %.1f GiB, compute capability %d.%d", p.name,
                  (double)p.totalGlobalMem / ((size_t)1 << 30), p.major, p.minor);
}

void tern__cuda_libraries(char *text, size_t size)
{
    int version = 0;
    cudaRuntimeGetVersion(&version);
    char cudnn[32], cublas[32];
    tern__cudnn_version(cudnn, sizeof(cudnn));
    tern__cublas_version(cublas, sizeof(cublas));
    std::snprintf(text, size, "CUDA %d.%d%s%s%s%s", version / 1000, version % 1000 / 10, *cudnn ? ", " : "",
                  cudnn, *cublas ? ", " : "", cublas);
}

/* ---- life ---- */

static void give_back(tern_device *device, tern__cuda *cuda)
{
    tern__cuda_flush(device, nullptr);
    cudaSetDevice(cuda->index);
    for (cudaStream_t stream : cuda->streams)
        if (stream) cudaStreamSynchronize(stream);
    tern__cuda_graphs_free(cuda->graphs);
    for (tern__cuda_library &library : cuda->libraries)
        if (library.free) library.free(device, library.state);
    tern__cuda_pool_close(cuda->pool);
    for (cudaStream_t stream : cuda->streams)
        if (stream) cudaStreamDestroy(stream);
    tern__fault_free(cuda->fault);
}

/* An exit handler may call this after CUDA's runtime and the libraries above it have shut down in their
 * own handlers. Then the process's end frees what the device has. */
void tern__cuda_close(tern_device *device)
{
    tern__cuda *cuda = tern__cuda_of(device);
    if (!cuda) return;
    if (cudaSetDevice(cuda->index) != cudaErrorCudartUnloading) give_back(device, cuda);
    delete cuda;
    device->state = nullptr;
}

static int open_lanes(tern__cuda *cuda, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < TERN__STREAM_COUNT && !status; i++)
        status = tern__cuda_stream_open(cuda, (tern__device_stream)i, err);
    cuda->stream = cuda->streams[TERN__STREAM_STEP];
    return status;
}

static int open_parts(tern_device *device, tern__cuda *cuda, tern_error *err)
{
    cudaDeviceProp p;
    int status = tern__cuda_check(cudaSetDevice(cuda->index), "cudaSetDevice", err);
    if (!status)
        status = tern__cuda_check(cudaGetDeviceProperties(&p, cuda->index), "cudaGetDeviceProperties", err);
    if (status) return status;
    cuda->processors = p.multiProcessorCount;
    cuda->overlaps = cuda->has_clusters = tern__cuda_has_9(&p);
    cuda->has_graphs = cuda->has_small_gemms = cuda->exports = true;
    if ((status = tern__cuda_go_without(cuda, err))) return status;
    device->workspace = p.totalGlobalMem / 16;
    if ((status = tern__fault_new(&cuda->fault, err))) return status;
    status = open_lanes(cuda, err);
    return status ? status : tern__cuda_pool_open(cuda, p.totalGlobalMem, &device->memory, err);
}

int tern__cuda_open(tern_device *device, int index, tern_error *err)
{
    tern__cuda *cuda = new tern__cuda();
    cuda->index = index;
    cuda->graphs = tern__cuda_graphs_new();
    device->state = cuda;
    int status = open_parts(device, cuda, err);
    if (status) tern__cuda_close(device);
    return status;
}

/* ---- copies ---- */

static bool is_own(const tern_device *device, const void *data)
{
    return (size_t)((const char *)data - device->memory.base) < device->memory.bytes;
}

/* Waits for the stream and reports what has failed; without `err` failures stay for the next call. */
static int synchronize(tern__cuda *cuda, tern_error *err)
{
    int status = tern__cuda_check(cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize", err);
    return status || !err ? status : tern__fault_check(cuda->fault, cuda->stream, err);
}

static int take_back(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_hold hold;
    int status = tern__cuda_enter(device, &hold, err);
    cudaSetDevice(cuda->index);
    if (!status)
        status = tern__cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda->stream),
                                  "cudaMemcpyAsync", err);
    if (!status) status = synchronize(cuda, err);
    return status;
}

int tern__cuda_copy(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err)
{
    if (!is_own(device, to)) return take_back(device, to, from, bytes, err);
    if (!is_own(device, from)) return tern__cuda_bring(device, to, from, bytes, err);
    alignas(16) const tern__cuda_transfer t = {to, from, bytes};
    return tern__cuda_ask(device, &tern__cuda_transfer_kind, &t, err);
}

/* If this GPU has access to the other's mapped memory, it reads it directly over the link; otherwise the
 * call for copies between devices is used. The copy is in this device's stream, after the other's work so
 * far and before its next. */
int tern__cuda_copy_from(tern_device *device, void *to, tern_device *other, const void *from, size_t bytes,
                         tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device), *giver = tern__cuda_of(other);
    cudaEvent_t ready = nullptr, done = nullptr;
    tern_device *const both[2] = {device, other};
    tern__cuda_hold holds[2];
    bool may = cuda->index == giver->index || tern__cuda_pool_share(giver->pool, cuda->index);
    int status = tern__cuda_enter_both(both, holds, err);
    if (status) return status;
    cudaSetDevice(giver->index);
    cudaError_t code = cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    if (code == cudaSuccess) code = cudaEventRecord(ready, giver->stream);
    cudaSetDevice(cuda->index);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    if (code == cudaSuccess) code = cudaStreamWaitEvent(cuda->stream, ready);
    if (code == cudaSuccess)
        code = may ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->stream)
                   : cudaMemcpyPeerAsync(to, cuda->index, from, giver->index, bytes, cuda->stream);
    if (code == cudaSuccess) code = cudaEventRecord(done, cuda->stream);
    if (code == cudaSuccess) code = cudaStreamWaitEvent(giver->stream, done);
    if (ready) cudaEventDestroy(ready);
    if (done) cudaEventDestroy(done);
    return tern__cuda_check(code, "a copy between devices", err);
}

static int run_clearing(tern__cuda *cuda, const void *data, tern_error *err)
{
    const tern__cuda_transfer *t = (const tern__cuda_transfer *)data;
    return tern__cuda_check(cudaMemsetAsync(t->to, 0, t->bytes, cuda->stream), "cudaMemsetAsync", err);
}

int tern__cuda_zero(tern_device *device, void *to, size_t bytes, tern_error *err)
{
    static const tern__cuda_kind kind = {sizeof(tern__cuda_transfer), sizeof(tern__cuda_transfer),
                                         run_clearing, nullptr};
    alignas(16) const tern__cuda_transfer t = {to, nullptr, bytes};
    return tern__cuda_ask(device, &kind, &t, err);
}

/* ---- waiting ---- */

int tern__cuda_wait(tern_device *device, tern_error *err)
{
    tern__cuda_hold hold;
    int status = tern__cuda_enter(device, &hold, err);
    return status ? status : synchronize(tern__cuda_of(device), err);
}
