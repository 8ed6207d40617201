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

#include <tuple>
#include <utility>

extern "C" {
#include "device/backend.h"
#include "kernels/kernel.h"
}

/* ---- a device ---- */

struct tern__cuda_pool;

/* What a vendor's library keeps for a device: made with its first use, freed with the device. */
enum { TERN__CUDA_CUBLAS, TERN__CUDA_CUDNN, TERN__CUDA_LIBRARIES };
typedef struct tern__cuda_library {
    void *state;
    void (*free)(tern_device *device, void *state);
} tern__cuda_library;

typedef struct tern__cuda {
    int index, processors;
    cudaStream_t stream;                  /* the lane of the step                     */
    cudaStream_t lanes[TERN__LANE_COUNT]; /* all of them; the others come before it where both could run */
    struct tern__fault *fault;
    tern__cuda_pool *pool;
    tern__cuda_library libraries[TERN__CUDA_LIBRARIES];
} tern__cuda;

static inline tern__cuda *tern__cuda_of(const tern_device *device)
{
    return (tern__cuda *)device->state;
}

/* ---- errors ---- */

/* TERN_OK, or E_MEMORY or E_SYSTEM with CUDA's name and text of it. */
int tern__cuda_check(cudaError_t code, const char *what, tern_error *err);

/* ---- kernels ---- */

/* Starts a kernel of grid x block threads; `shared` bytes are what tern__cuda_shared gives. */
template <class... P, class... A>
int tern__cuda_launch(const tern__call *call, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                      A... args)
{
    int status = tern__fault_check(tern__cuda_of(call->device)->fault, call->err);
    if (status) return status;
    std::tuple<P...> values(static_cast<P>(args)...);
    void *pointers[sizeof...(P)];
    int i = 0;
    std::apply([&](P &...each) { ((pointers[i++] = (void *)&each), ...); }, values);
    cudaError_t code =
        cudaLaunchKernel(kernel, grid, block, pointers, shared, tern__cuda_of(call->device)->stream);
    return code == cudaSuccess ? TERN_OK : tern__cuda_check(code, "cudaLaunchKernel", call->err);
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
