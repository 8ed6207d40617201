/* f64_norm.h - the kernels of batch norm and of group norm, depending on call->kernel, in f64. */
#ifndef TERN_SRC_KERNELS_CPU_F64_NORM_H
#define TERN_SRC_KERNELS_CPU_F64_NORM_H

#include "kernels/kernel.h"

int tern__f64_batch_norm(const tern__call *call);
int tern__f64_group_norm(const tern__call *call);

#endif
