/* fault.cc - reports the label or index that a kernel has recorded as out of range. */
#include "cuda/fault.h"
#include "cuda/runtime.h"

int tern__fault_new(tern__fault **fault, tern_error *err)
{
    void *data = nullptr;
    cudaError_t code = cudaHostAlloc(&data, sizeof(tern__fault), cudaHostAllocMapped);
    if (code != cudaSuccess) return tern__cuda_check(code, "cudaHostAlloc", err);
    *fault = (tern__fault *)data;
    **fault = {};
    return TERN_OK;
}

void tern__fault_free(tern__fault *fault)
{
    if (fault) cudaFreeHost(fault);
}

/* Waits for the kernels after the first: they read the same labels. They leave no record while this one is
 * taken, and would otherwise leave one that a later step is blamed for. */
int tern__fault_report(tern__fault *fault, cudaStream_t stream, tern_error *err)
{
    cudaStreamSynchronize(stream);
    tern__fault seen = {0, 0, fault->site, fault->number, fault->label};
    fault->ready = 0;
    fault->taken = 0;
    if (!seen.site.is_index) return tern__label_error(err, seen.site.labels, seen.number, seen.label);
    tern__view index = {};
    index.ndim = seen.site.ndim;
    for (int d = 0; d < index.ndim; d++) index.shape[d] = seen.site.shape[d];
    return tern__index_error(err, &index, seen.site.labels.classes, seen.number, seen.label);
}
