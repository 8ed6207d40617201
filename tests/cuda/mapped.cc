/* mapped.cc - src/cuda/pages.cc on a driver that refuses some calls: exportable memory is replaced by
 * memory that stays, once and for all, and nothing remains of what was refused. */
#include "cuda/pages.cc"

#include <cstdio>

typedef enum call { NONE, CREATE, MAP, ACCESS } call;

static struct {
    call refused;
    CUresult code;
    bool always; /* plain memory as well */
    bool is_plain;
    int asked, made, mapped;
} fake;

static int failures;

/* ---- the driver ---- */

static bool refuses(call what)
{
    return fake.refused == what && (fake.always || !fake.is_plain);
}

static CUresult get_device(CUdevice *device, int index)
{
    *device = index;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value, CUdevice_attribute, CUdevice)
{
    *value = 1;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t, const CUmemAllocationProp *what,
                       unsigned long long)
{
    fake.is_plain = !what->requestedHandleTypes && !what->allocFlags.gpuDirectRDMACapable;
    fake.asked++;
    if (refuses(CREATE)) return fake.code;
    *handle = 7;
    fake.made++;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    fake.made -= handle == 7;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)
{
    if (refuses(MAP)) return fake.code;
    fake.mapped++;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr, size_t)
{
    fake.mapped--;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)
{
    return refuses(ACCESS) ? fake.code : CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {{"cuDeviceGet", (void *)get_device},
                     {"cuDeviceGetAttribute", (void *)get_attribute},
                     {"cuMemCreate", (void *)create},
                     {"cuMemRelease", (void *)release},
                     {"cuMemMap", (void *)map},
                     {"cuMemUnmap", (void *)unmap},
                     {"cuMemSetAccess", (void *)set_access}};
    *found = nullptr;
    for (const auto &f : functions)
        if (!std::strcmp(f.name, name)) *found = f.function;
    return cudaSuccess;
}

/* ---- tests ---- */

static void expect(bool is_so, const char *what)
{
    if (is_so) return;
    std::printf("FAILED: call %d refused with %d%s: %s\n", (int)fake.refused, (int)fake.code,
                fake.always ? ", always" : "", what);
    failures++;
}

static void check(call refused, CUresult code, bool always)
{
    static char pages[1];
    unsigned long long handle = 0;
    bool has_some = refused == NONE || !always, stays = false;
    fake = {refused, code, always, false, 0, 0, 0};
    for (int turn = 0; turn < 2; turn++) {
        bool is_known = turn && refused != NONE && has_some;
        fake.asked = 0;
        expect(tern__cuda_map(0, pages, TERN__CUDA_PAGE, &stays, &handle) == has_some,
               "is mapped, or is not");
        expect(fake.made == has_some && fake.mapped == has_some, "something is left behind");
        expect(fake.is_plain == (refused != NONE), "of the wrong kind");
        expect(fake.asked == 1 + (fake.is_plain && !is_known), "asked for once more");
        expect(stays == (refused != NONE && has_some), "is remembered, or is not");
        if (has_some) tern__cuda_unmap(pages, TERN__CUDA_PAGE, handle);
        expect(!fake.made && !fake.mapped, "something stays");
    }
}

int main(void)
{
    check(NONE, CUDA_SUCCESS, false);
    for (call refused : {CREATE, MAP, ACCESS})
        for (CUresult code : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN})
            for (bool always : {false, true}) check(refused, code, always);
    if (!failures) std::printf("all is as asked\n");
    return failures != 0;
}
