/* runtime.h - what every file of this plug-in needs: a device's state, errors, and launching kernels.
 *
 * This is C++ because nvcc needs it, but otherwise written like C: no classes, no exceptions. The
 * library's headers are included, but none of its functions can be called except inline ones and those in
 * files that are compiled into the plug-in. Types that a file passes to its own kernels are in an
 * anonymous namespace: otherwise templates instantiated with types of the same name in two files would be
 * the same function. */
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

/* What a vendor's library keeps for a device: made at first use, freed with the device, plans before the
 * handles that made them. */
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
    bool overlaps;        /* kernels are launched before their predecessor has ended */
    bool has_clusters;    /* clusters of blocks that read each other's shared memory (cluster.h) */
    bool has_graphs;      /* for steps, if asked for, and for measuring */
    bool has_small_gemms; /* the kernel for small products may be used (small_gemm_plan.cc) */
    bool exports;         /* its memory can be exported to other processes and network cards */
    bool is_warm;         /* something was measured on it before (stopwatch.h) */
    cudaStream_t stream;  /* the step's stream */
    cudaStream_t streams[TERN__STREAMS]; /* all streams; the others have priority over the step's */
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

/* Converts CUDA's code: TERN_OK, E_MEMORY or E_SYSTEM. */
static inline int tern__cuda_status(cudaError_t code)
{
    return code == cudaSuccess ? TERN_OK : code == cudaErrorMemoryAllocation ? TERN_E_MEMORY : TERN_E_SYSTEM;
}

/* The same, and sets *err with CUDA's name and text of the code. */
int tern__cuda_check(cudaError_t code, const char *what, tern_error *err);

/* ---- kernels ---- */

/* The data of a kernel's item, followed by the kernel's arguments, each aligned as its type. */
typedef struct tern__cuda_start {
    void (*kernel)();
    unsigned grid[3], block[3];
    size_t shared, cluster; /* cluster: blocks per cluster; 0: none */
} tern__cuda_start;

/* Returns the place of the next argument. */
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

/* Every kernel calls this before it accesses memory. It may be launched while its predecessor in the
 * stream still runs, and waits here until that has ended. The blocks of the next kernel are launched when
 * all blocks of this one have begun, so they do not delay it. */
static __device__ __forceinline__ void tern__kernel_begin(void)
{
#if defined(TERN_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* Launches a kernel of grid x block threads with `shared` bytes of dynamic shared memory
 * (tern__cuda_shared). `cluster` blocks each form a cluster, if the device has clusters; 0: none. */
template <class... P, class... A>
int tern__cuda_launch_clusters(const tern__call *call, size_t cluster, void (*kernel)(P...), dim3 grid,
                               dim3 block, size_t shared, A... args)
{
    constexpr size_t size = (sizeof(tern__cuda_start) + ... + (sizeof(P) + alignof(P)));
    static const tern__cuda_kind kind = {size, sizeof(tern__cuda_start), tern__cuda_start_run<P...>,
                                         tern__cuda_start_change<P...>};
    const tern__cuda *cuda = tern__cuda_of(call->device);
    int status = cuda->fault->ready ? call->device->backend->flush(call->device, call->err) : TERN_OK;
    if (status) return status; /* a fault that an earlier kernel recorded */
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

/* Returns enough blocks of `threads` threads for `count` elements, `each` per thread, but no more than
 * keep the device busy: kernels loop in steps of the grid. */
static inline dim3 tern__cuda_grid(const tern__call *call, int64_t count, int threads, int each)
{
    int64_t wanted = (count + (int64_t)threads * each - 1) / ((int64_t)threads * each);
    int64_t most = (int64_t)tern__cuda_of(call->device)->processors * 32;
    return dim3((unsigned)TERN__MAX((int64_t)1, TERN__MIN(wanted, most)));
}

/* Allocates memory for the time that a kernel runs. It may be freed as soon as the kernel is launched,
 * since its next user comes later in the stream. */
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
