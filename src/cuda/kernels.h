/* kernels.h - the kernels of this plug-in, named as in kernels.def. */
#ifndef TERN_SRC_CUDA_KERNELS_H
#define TERN_SRC_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernel.h"

int tern__cuda_pointwise(const tern__call *call);
#define K(id, name, inputs, outputs) int tern__cuda_##name(const tern__call *call);
#define C(id, name, inputs, outputs)
#define B(id, name, inputs, outputs)
#include "kernels/kernels.def"

#ifdef __cplusplus
}
#endif
#endif
