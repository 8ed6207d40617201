/* cuda_runtime.h - the part of CUDA that src/cuda uses, on the CPU, so that its kernels and host code can
 * be tested without a GPU. Threads of a block are fibers, blocks run one after the other, and the host can
 * access device memory only through copies (a stray access is a segmentation fault). Work for the step's
 * stream is done when the call returns, unless it comes after work of another stream, or when the graph
 * that it was captured for is launched. Work for other streams, and with TERN_EMULATED_ASYNC for any, is
 * done as late as events allow, so code that forgets to wait reads stale data. */
#ifndef TERN_TESTS_CUDA_RUNTIME_H
#define TERN_TESTS_CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#define TERN_CUDA_EMULATED 1
#define CUDART_VERSION     13000

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __shared__      static
#define __restrict__ __restrict
#define __grid_constant__
/* The bound can be read from a kernel's address. */
#define __launch_bounds__(threads, ...) __attribute__((aligned(threads)))
#define __align__(n)                    __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
        : x(width), y(height), z(depth)
    {
    }
};
extern dim3 gridDim, blockDim;
const dim3 &emulated_block();
const dim3 &emulated_thread();
#define blockIdx  emulated_block()
#define threadIdx emulated_thread()

struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(8) float2
{
    float x, y;
};

/* ---- cooperation of a block's threads ---- */

/* Waits for the previous kernel; every thread of every kernel must call it. */
void cudaGridDependencySynchronize();
void cudaTriggerProgrammaticLaunchCompletion();
void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);
/* The barrier of a cluster. Data that blocks read from each other's shared memory must be in its dynamic
 * part: __shared__ variables are one for all blocks here. */
void __cluster_barrier_arrive();
void __cluster_barrier_wait();
void *__cluster_map_shared_rank(const void *data, unsigned rank);
/* The value that lane `from` of this warp has passed, at most 8 bytes. */
uint64_t emulated_shuffle(uint64_t value, int from);
int emulated_lane();
char *emulated_shared();
/* The rank of this thread's block in its cluster, and bytes in the shared memory of one of the
 * cluster's blocks. */
unsigned emulated_rank();
char *emulated_shared_at(unsigned rank, size_t offset, size_t bytes);

template <class T> T emulated_shuffle_of(T value, int from)
{
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(value));
    bits = emulated_shuffle(bits, from);
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
template <class T> T __shfl_sync(unsigned, T value, int lane)
{
    return emulated_shuffle_of(value, lane);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask)
{
    return emulated_shuffle_of(value, emulated_lane() ^ mask);
}
template <class T> T __shfl_down_sync(unsigned, T value, int delta)
{
    int from = emulated_lane() + delta;
    return emulated_shuffle_of(value, from < 32 ? from : emulated_lane());
}

/* One thread runs at a time, so two steps would do; they are atomic for ThreadSanitizer. */
template <class T> T emulated_exchange(T *at, T before, T after)
{
    __atomic_store(at, &after, __ATOMIC_RELAXED);
    return before;
}
template <class T> T emulated_load(const T *at)
{
    T value;
    __atomic_load(at, &value, __ATOMIC_RELAXED);
    return value;
}
template <class T> T atomicAdd(T *at, T value)
{
    T before = emulated_load(at);
    return emulated_exchange(at, before, before + value);
}
template <class T> T atomicMax(T *at, T value)
{
    T before = emulated_load(at);
    return emulated_exchange(at, before, before < value ? value : before);
}
template <class T> T atomicCAS(T *at, T expected, T value)
{
    T before = emulated_load(at);
    return emulated_exchange(at, before, before == expected ? value : before);
}
inline void __threadfence()
{
}
inline void __threadfence_system()
{
}
/* Asynchronous copies into shared memory arrive when they are waited for, not before. */
void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0);
void __pipeline_commit();
void __pipeline_wait_prior(size_t groups);
template <class T> T __ldg(const T *at)
{
    return *at;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
inline float rsqrtf(float x)
{
    return 1 / std::sqrt(x);
}
inline double rsqrt(double x)
{
    return 1 / std::sqrt(x);
}

/* ---- the runtime ---- */

typedef enum cudaError {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorCudartUnloading = 4,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712
} cudaError_t;
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
enum {
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaHostRegisterPortable = 1
};
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
} cudaMemcpyKind;
struct cudaDeviceProp {
    char name[256];
    struct {
        char bytes[16];
    } uuid;
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int index);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceGetStreamPriorityRange(int *last, int *first);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *data);
typedef enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice
} cudaMemoryType;
struct cudaPointerAttributes {
    cudaMemoryType type;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *data);
cudaError_t cudaHostRegister(void *base, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *base);

/* ---- graphs ---- */

typedef struct emulated_node *cudaGraphNode_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_exec *cudaGraphExec_t;
typedef enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 } cudaStreamCaptureMode;
typedef enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive
} cudaStreamCaptureStatus;
struct cudaGraphEdgeData;
struct cudaKernelNodeParams {
    void *func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams *params);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* Counts of the plug-in's calls on all devices, for tests. */
typedef struct emulated_counts {
    int64_t kernels, others;           /* enqueued one by one: kernels; library calls, copies, zeros */
    int64_t captures, graphs, changes; /* graphs captured, launched; nodes updated */
    int64_t largest;                   /* the largest grid; tests reset it */
    int64_t overlapping, clusters;     /* of the kernels: overlapping their predecessor; in clusters */
    int64_t looks, exportable;         /* queries of free memory; mappings that may be exported */
} emulated_counts;
extern "C" __attribute__((visibility("default"))) emulated_counts emulated_counted;

/* Whether TERN_EMULATED_REFUSES names this. "change": updating an overlapping kernel's arguments,
 * "engines": running any engine of cuDNN, "products": any of cuBLASLt, "runtime": everything, as when the
 * process ends. */
bool emulated_refuses(const char *what);
/* Called by functions that must not be called after that. */
void emulated_expect_runtime();

/* ---- work for streams ---- */

/* Enqueues a library's work in a stream. */
void emulated_enqueue(cudaStream_t stream, std::function<void()> work);

/* For libraries that are separate shared objects. Their work may wait for others: it is polled until it
 * says that it is done. */
struct emulated_library {
    void (*enqueue)(cudaStream_t stream, std::function<bool()> work);
    void (*memory_open)();
    void (*memory_close)();
    bool (*memory_has)(const void *data);
    bool (*memory_is_one)(const void *data, size_t bytes);
};
inline const emulated_library *emulated_library_of(cudaStream_t stream)
{
    return *(const emulated_library *const *)stream;
}

/* A kernel, its launch configuration, and its arguments. */
struct emulated_kernel {
    const void *kernel;
    void (*start)(const emulated_kernel &kernel, void **args);
    dim3 grid, block;
    size_t shared;
    unsigned cluster; /* blocks of a cluster */
    bool overlaps;    /* it may overlap its predecessor */
    const size_t *sizes;
    int count;
};

/* Runs `thread` once for each thread of the kernel's grid. Each must wait for the previous kernel, as if all
 * kernels were launched early: the memory stays closed until one has. */
void emulated_run(const emulated_kernel &kernel, void (*thread)(void *ctx), void *ctx);

/* Runs the kernel as nvcc compiled it, if TERN_EMULATED_COMPILED has the command that makes such code
 * (compiled/compile.py and its options; a file and a kernel's name are added). false: it is to be run as
 * C++. */
bool emulated_compiled(const emulated_kernel &kernel, void **args);

template <class... P> struct emulated_launch {
    void (*kernel)(P...);
    void **args;
    template <size_t... I> void call(std::index_sequence<I...>)
    {
        kernel(*(P *)args[I]...);
    }
    static void thread(void *ctx)
    {
        ((emulated_launch *)ctx)->call(std::index_sequence_for<P...>());
    }
};
template <class... P> void emulated_start(const emulated_kernel &k, void **args)
{
    if (emulated_compiled(k, args)) return;
    emulated_launch<P...> launch = {(void (*)(P...))k.kernel, args};
    emulated_run(k, emulated_launch<P...>::thread, &launch);
}

cudaError_t emulated_ask(const emulated_kernel &kernel, void **args, cudaStream_t stream);

typedef enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
} cudaLaunchAttributeID;
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        struct {
            unsigned x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <class... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), P... args)
{
    static const size_t sizes[] = {sizeof(P)...};
    void *places[] = {&args...};
    unsigned cluster = 1;
    bool overlaps = false;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = c->attrs[i].val.clusterDim.x;
        overlaps |= c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization;
    }
    return emulated_ask({(const void *)kernel, emulated_start<P...>, c->gridDim, c->blockDim,
                         c->dynamicSmemBytes, cluster, overlaps, sizes, sizeof...(P)},
                        places, c->stream);
}

struct cudaFuncAttributes {
    int binaryVersion, ptxVersion;
};
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*)(P...))
{
    *attributes = {90, 90};
    return cudaSuccess;
}

#endif
