#include "cuda/runtime.h"

int tern__cuda_ask(tern_device *device, const tern__cuda_kind *kind, const void *data, tern_error *err)
{
    tern__cuda *cuda = tern__cuda_of(device);
    cudaSetDevice(cuda->index);
    return kind->run(cuda, data, err);
}
