/* capability.cu - finds out which code of this plug-in a GPU runs. */
#include "cuda/capability.h"

static __global__ void none(void)
{
    tern__kernel_begin();
}

bool tern__cuda_has_9(const cudaDeviceProp *properties)
{
    cudaFuncAttributes code;
    bool is_known = cudaFuncGetAttributes(&code, none) == cudaSuccess;
    if (!is_known) cudaGetLastError(); /* clears the error, which later calls must not see */
    return is_known && properties->major >= 9 && code.ptxVersion >= 90;
}
