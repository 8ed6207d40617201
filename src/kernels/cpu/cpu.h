/* cpu.h - the fast CPU kernels: oneDNN where it has the operation, vector loops elsewhere. For what they
 * do not take (some dtypes, odd strides) they return E_UNSUPPORTED, and the reference kernel runs. */
#ifndef TERN_SRC_KERNELS_CPU_CPU_H
#define TERN_SRC_KERNELS_CPU_CPU_H

#include "kernels/kernel.h"

int tern__cpu_pointwise(const tern__call *call);
#define K(id, name, inputs, outputs) int tern__cpu_##name(const tern__call *call);
#define G(id, name, inputs, outputs)
#include "kernels/kernels.def"

#endif
