/* error.cc - turns an error of CUDA's runtime into tern's. */
#include "cuda/runtime.h"

int tern__cuda_check(cudaError_t code, const char *what, tern_error *err)
{
    int status = tern__cuda_status(code);
    if (!status) return TERN_OK;
    tern__error_set(err, "tern_device", status, "%s: %s (%s)", what, cudaGetErrorName(code),
                    cudaGetErrorString(code));
    if (err && !err->native) err->native = (int)code;
    return status;
}
