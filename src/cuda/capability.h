/* capability.h - what code of this plug-in a GPU runs. */
#ifndef TERN_SRC_CUDA_CAPABILITY_H
#define TERN_SRC_CUDA_CAPABILITY_H

#include "cuda/runtime.h"

/* Whether the current device, of these properties, runs code for compute capability 9.0 or later: kernels
 * that may be launched before the one before them in the stream is over, since they wait for its end, and
 * clusters of blocks. Code for older ones, which the driver translates for newer ones, does not wait. */
bool tern__cuda_has_9(const cudaDeviceProp *properties);

#endif
