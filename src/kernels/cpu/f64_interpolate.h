/* f64_interpolate.h - resizing or its gradient, depending on call->kernel, in f64. */
#ifndef TERN_SRC_KERNELS_CPU_F64_INTERPOLATE_H
#define TERN_SRC_KERNELS_CPU_F64_INTERPOLATE_H

#include "kernels/kernel.h"

int tern__f64_interpolate(const tern__call *call);

#endif
