/* f64_pool.h - the kernels of pooling, depending on call->kernel, in f64. */
#ifndef TERN_SRC_KERNELS_CPU_F64_POOL_H
#define TERN_SRC_KERNELS_CPU_F64_POOL_H

#include "kernels/kernel.h"

int tern__f64_pool(const tern__call *call);

#endif
