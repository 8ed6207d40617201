/* capability.h - which code of this plug-in a GPU runs. */
#ifndef TERN_SRC_CUDA_CAPABILITY_H
#define TERN_SRC_CUDA_CAPABILITY_H

#include "cuda/runtime.h"

/* Whether the current device, with these properties, runs code for compute capability 9.0 or later. That
 * code has clusters of blocks, and kernels that may be launched before their predecessor in the stream has
 * ended, since they wait for it. Code for older capabilities, which the driver translates for newer GPUs,
 * does not wait. */
bool tern__cuda_has_9(const cudaDeviceProp *properties);

#endif
