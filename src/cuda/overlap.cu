/* overlap.cu - whether a kernel may be launched before the one before it in the stream is over: where the
 * GPU can do so, and the code of this plug-in that it runs was made for such GPUs and waits by itself. Code
 * for older ones, which the driver translates, does not wait. */
#include "cuda/overlap.h"

static __global__ void none(void)
{
    tern__kernel_begin();
}

bool tern__cuda_overlaps(const cudaDeviceProp *properties)
{
    cudaFuncAttributes code;
    bool is_known = cudaFuncGetAttributes(&code, none) == cudaSuccess;
    if (!is_known) cudaGetLastError(); /* which is nobody else's */
    return is_known && properties->major >= 9 && code.ptxVersion >= 90;
}
