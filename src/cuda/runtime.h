/* runtime.h - what every file of this plug-in needs: a device's state, errors, and how kernels are started.
 *
 * This is C++ for nvcc's sake; the language is that of C otherwise: no classes, no exceptions. The library's
 * own headers are included, but none of its functions can be called except the inline ones and those of
 * the files that are compiled into the plug-in. Types of a file's own that its kernels are given are in a
 * nameless namespace: templates would take those of two files for one by their name. */
#ifndef TERN_SRC_CUDA_RUNTIME_H
#define TERN_SRC_CUDA_RUNTIME_H

#include <cuda_runtime.h>

#include "cuda/fault.h"
#include "cuda/item.h"

#include <cstring>
#include <utility>

extern "C" {
#include "device/backend.h"
#include "kernels/kernel.h"
}

/* ---- a device ---- */

struct tern__cuda_pool;
struct tern__cuda_graphs;

/* What a library keeps for a device: made with its first use, freed with the device,
 * plans before what they were made with. */
enum {
    TERN__CUDA_CUBLAS,
    TERN__CUDA_SMALL_GEMM_PLANS,
    TERN__CUDA_CONV,
    TERN__CUDA_CUDNN,
    TERN__CUDA_LIBRARIES
};
typedef struct tern__cuda_library {
    void *state;
    void (*free)(tern_device *device, void *state);
} tern__cuda_library;

typedef struct tern__cuda {
    int index, processors;
    bool overlaps;                       /* kernels are launched before the one before them is over         */
    bool has_clusters;                   /* of blocks that read each other's shared memory (cluster.h)      */
    bool has_graphs;                     /* for steps, where they are asked for, and for what is timed      */
    bool has_small_gemms;                /* the kernel for small products is tried (small_gemm_plan.cc)     */
    bool exports;                        /* other processes and network cards may be given its memory       */
    bool is_warm;                        /* it has been measured before (stopwatch.h)                       */
    cudaStream_t stream;                 /* the stream of the step                                        */
    cudaStream_t streams[TERN__STREAMS]; /* all of them; the others come before it where both could run */
    struct tern__fault *fault;
    tern__cuda_pool *pool;
    tern__cuda_graphs *graphs;
    tern__cuda_library libraries[TERN__CUDA_LIBRARIES];
} tern__cuda;

static inline tern__cuda *tern__cuda_of(const tern_device *device)
{
    return (tern__cuda *)device->state;
}

/* ---- streams.cc ---- */

int tern__cuda_stream_open(tern__cuda *cuda, tern__device_stream stream, tern_error *err);

/* ---- errors ---- */

/* TERN_OK, E_MEMORY or E_SYSTEM. */
static inline int tern__cuda_status(cudaError_t code)
{
    return code == cudaSuccess ? TERN_OK : code == cudaErrorMemoryAllocation ? TERN_E_MEMORY : TERN_E_SYSTEM;
}

/* That, with CUDA's name and text of it. */
int tern__cuda_check(cudaError_t code, const char *what, tern_error *err);

/* ---- kernels ---- */

/* The bytes of a kernel's item; its arguments are behind them, each aligned as its type is. */
typedef struct tern__cuda_start {
    void (*kernel)();
    unsigned grid[3], block[3];
    size_t shared, cluster; /* cluster: its blocks; 0: none */
} tern__cuda_start;

/* The place of the next argument. */
template <class P> void *tern__cuda_argument(const void *data, size_t *offset)
{
    static_assert(alignof(P) <= 16, "items are aligned to 16 bytes");
    *offset = tern__align_up(*offset, alignof(P));
    void *place = (char *)data + *offset;
    *offset += sizeof(P);
    return place;
}

template <class P> void tern__cuda_put(void *data, size_t *offset, P value)
{
    std::memcpy(tern__cuda_argument<P>(data, offset), &value, sizeof(value));
}

template <class... P, size_t... I>
cudaError_t tern__cuda_start_now(const tern__cuda *cuda, const tern__cuda_start *s, void *const *arguments,
                                 std::index_sequence<I...>)
{
    cudaLaunchAttribute some[2] = {}, *cluster = &some[cuda->overlaps];
    some[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    some[0].val.programmaticStreamSerializationAllowed = 1;
    if (s->cluster) {
        cluster->id = cudaLaunchAttributeClusterDimension;
        cluster->val.clusterDim = {(unsigned)s->cluster, 1, 1};
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(s->grid[0], s->grid[1], s->grid[2]);
    config.blockDim = dim3(s->block[0], s->block[1], s->block[2]);
    config.dynamicSmemBytes = s->shared;
    config.stream = cuda->stream;
    config.attrs = some;
    config.numAttrs = cuda->overlaps + (s->cluster > 0);
    return cudaLaunchKernelEx(&config, (void (*)(P...))s->kernel, *(P *)arguments[I]...);
}

template <class... P> int tern__cuda_start_run(tern__cuda *cuda, const void *data, tern_error *err)
{
    const tern__cuda_start *s = (const tern__cuda_start *)data;
    size_t offset = sizeof(*s);
    void *pointers[] = {tern__cuda_argument<P>(data, &offset)...};
    cudaError_t code = tern__cuda_start_now<P...>(cuda, s, pointers, std::index_sequence_for<P...>());
    return code == cudaSuccess ? TERN_OK : tern__cuda_check(code, "cudaLaunchKernelEx", err);
}

template <class... P>
cudaError_t tern__cuda_start_change(const void *data, cudaGraphExec_t exec, cudaGraphNode_t node)
{
    const tern__cuda_start *s = (const tern__cuda_start *)data;
    size_t offset = sizeof(*s);
    void *pointers[] = {tern__cuda_argument<P>(data, &offset)...};
    cudaKernelNodeParams params = {};
    params.func = (void *)s->kernel;
    params.gridDim = dim3(s->grid[0], s->grid[1], s->grid[2]);
    params.blockDim = dim3(s->block[0], s->block[1], s->block[2]);
    params.sharedMemBytes = (unsigned)s->shared;
    params.kernelParams = pointers;
    return cudaGraphExecKernelNodeSetParams(exec, node, &params);
}

/* Every kernel begins so, before it looks at memory: it may be launched while the one before it in the
 * stream still runs, and then waits here for its end. The next one's blocks come when all of this one's have
 * begun, so they are in nobody's way. */
static __device__ __forceinline__ void tern__kernel_begin(void)
{
#if defined(TERN_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* Starts a kernel of grid x block threads; `shared` bytes are what tern__cuda_shared gives. Each `cluster`
 * blocks are a cluster, where the device has such; 0: they have nothing to do with each other. */
template <class... P, class... A>
int tern__cuda_launch_clusters(const tern__call *call, size_t cluster, void (*kernel)(P...), dim3 grid,
                               dim3 block, size_t shared, A... args)
{
    constexpr size_t size = (sizeof(tern__cuda_start) + ... + (sizeof(P) + alignof(P)));
    static const tern__cuda_kind kind = {size, sizeof(tern__cuda_start), tern__cuda_start_run<P...>,
                                         tern__cuda_start_change<P...>};
    const tern__cuda *cuda = tern__cuda_of(call->device);
    int status = cuda->fault->ready ? call->device->backend->flush(call->device, call->err) : TERN_OK;
    if (status) return status; /* what a kernel has left */
    alignas(16) char data[size] = {};
    size_t offset = 0;
    tern__cuda_put<tern__cuda_start>(
        data, &offset,
        {(void (*)())kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, cluster});
    (tern__cuda_put<P>(data, &offset, args), ...);
    return tern__cuda_ask(call->device, &kind, data, call->err);
}

template <class... P, class... A>
int tern__cuda_launch(const tern__call *call, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                      A... args)
{
    return tern__cuda_launch_clusters(call, 0, kernel, grid, block, shared, args...);
}

/* Enough blocks of `threads` for `count` elements, of which a thread takes `each`; no more than keep the
 * device busy, so kernels go on in steps of the grid. */
static inline dim3 tern__cuda_grid(const tern__call *call, int64_t count, int threads, int each)
{
    int64_t wanted = (count + (int64_t)threads * each - 1) / ((int64_t)threads * each);
    int64_t most = (int64_t)tern__cuda_of(call->device)->processors * 32;
    return dim3((unsigned)TERN__MAX((int64_t)1, TERN__MIN(wanted, most)));
}

/* Memory that a kernel needs while it runs: it may be given back as soon as the kernel is started, since
 * whoever gets it next comes later in the stream. */
static inline void *tern__cuda_scratch(const tern__call *call, size_t bytes)
{
    return call->device->backend->alloc(call->device, bytes);
}
static inline void tern__cuda_scratch_free(const tern__call *call, void *data)
{
    if (data) call->device->backend->free(call->device, data);
}

#ifdef TERN_CUDA_EMULATED
static inline char *tern__cuda_shared(void)
{
    return emulated_shared();
}
#else
static __device__ __forceinline__ char *tern__cuda_shared(void)
{
    extern __shared__ __align__(16) char tern__cuda_shared_bytes[];
    return tern__cuda_shared_bytes;
}
#endif

#endif
