/* pages.cc - the driver's virtual memory. Its functions are looked up by name, so that the plug-in is not
 * linked with the driver, which exists only where a GPU is. */
#include "cuda/pool.h"

#include <cuda.h>

template <class F> static F *driver(const char *name)
{
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
    return (F *)found;
}

/* Looks up the driver's function of that name. */
#define DRIVER(name) (driver<decltype(name)>(#name))

int tern__cuda_reserve(size_t bytes, void **base, tern_error *err)
{
    CUdeviceptr found = 0;
    auto *reserve = DRIVER(cuMemAddressReserve);
    CUresult code = reserve ? reserve(&found, bytes, TERN__CUDA_PAGE, 0, 0) : CUDA_ERROR_NOT_FOUND;
    *base = (void *)found;
    if (code == CUDA_SUCCESS) return TERN_OK;
    return tern__error_set(err, "tern_device_open", TERN_E_SYSTEM,
                           "cuMemAddressReserve of %zu bytes: CUDA error %d", bytes, (int)code);
}

void tern__cuda_unreserve(void *base, size_t bytes)
{
    auto *give_back = DRIVER(cuMemAddressFree);
    if (give_back) give_back((CUdeviceptr)base, bytes);
}

static CUresult let_use(int index, void *at, size_t bytes)
{
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = index;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return DRIVER(cuMemSetAccess)((CUdeviceptr)at, bytes, &access, 1);
}

bool tern__cuda_let_use(int index, void *at, size_t bytes)
{
    return let_use(index, at, bytes) == CUDA_SUCCESS;
}

static bool has(int index, CUdevice_attribute attribute)
{
    CUdevice device;
    int value = 0;
    return DRIVER(cuDeviceGet)(&device, index) == CUDA_SUCCESS &&
           DRIVER(cuDeviceGetAttribute)(&value, attribute, device) == CUDA_SUCCESS && value;
}

/* Memory that NCCL can export to other processes and network cards, or memory that stays. */
static CUmemAllocationProp kind_of(int index, bool stays)
{
    CUmemAllocationProp what = {};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = index;
    if (stays) return what;
    if (has(index, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (has(index, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        what.allocFlags.gpuDirectRDMACapable = 1;
    return what;
}

/* Creates memory of that kind and maps it to whole pages; on failure nothing remains. */
static CUresult put_behind(const CUmemAllocationProp *what, void *at, size_t bytes,
                           unsigned long long *handle)
{
    CUmemGenericAllocationHandle memory;
    CUresult code = DRIVER(cuMemCreate)(&memory, bytes, what, 0);
    if (code != CUDA_SUCCESS) return code;
    *handle = memory;
    code = DRIVER(cuMemMap)((CUdeviceptr)at, bytes, 0, memory, 0);
    if (code != CUDA_SUCCESS) {
        DRIVER(cuMemRelease)(memory);
        return code;
    }
    code = let_use(what->location.id, at, bytes);
    if (code != CUDA_SUCCESS) tern__cuda_unmap(at, bytes, memory);
    return code;
}

/* Falls back to memory that stays if exportable memory cannot be used: drivers of virtual machines have
 * been seen that create and map memory for network cards and only refuse access to it. There may also be
 * less exportable memory than plain memory; the second attempt then tells whether none is left. */
bool tern__cuda_map(int index, void *at, size_t bytes, bool *stays, unsigned long long *handle)
{
    CUmemAllocationProp wanted = kind_of(index, *stays), plain = kind_of(index, true);
    if (put_behind(&wanted, at, bytes, handle) == CUDA_SUCCESS) return true;
    return !*stays && (*stays = put_behind(&plain, at, bytes, handle) == CUDA_SUCCESS);
}

void tern__cuda_unmap(void *at, size_t bytes, unsigned long long handle)
{
    DRIVER(cuMemUnmap)((CUdeviceptr)at, bytes);
    DRIVER(cuMemRelease)((CUmemGenericAllocationHandle)handle);
}
