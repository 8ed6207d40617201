/* kernels.h - the kernels of this plug-in, after the names of kernels.def. */
#ifndef TERN_SRC_CUDA_KERNELS_H
#define TERN_SRC_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernel.h"

int tern__cuda_matmul(const tern__call *call);
int tern__cuda_conv(const tern__call *call);
int tern__cuda_conv_data_grad(const tern__call *call);
int tern__cuda_conv_weight_grad(const tern__call *call);
int tern__cuda_pointwise(const tern__call *call);
int tern__cuda_reorder(const tern__call *call);

#ifdef __cplusplus
}
#endif
#endif
