/* overlap.h - kernels that are launched early (tern__kernel_begin). */
#ifndef TERN_SRC_CUDA_OVERLAP_H
#define TERN_SRC_CUDA_OVERLAP_H

#include "cuda/runtime.h"

/* Of the current device. */
bool tern__cuda_overlaps(const cudaDeviceProp *properties);

#endif
