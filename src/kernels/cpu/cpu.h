/* cpu.h - the fast CPU kernels: oneDNN where it has the operation, vector loops elsewhere. For what they
 * do not take (some dtypes, odd strides) they return E_UNSUPPORTED, and the reference kernel runs. */
#ifndef TERN_SRC_KERNELS_CPU_CPU_H
#define TERN_SRC_KERNELS_CPU_CPU_H

#include "kernels/kernel.h"

int tern__cpu_pointwise(const tern__call *call);
/* The call's input copied to its output, in any layouts. */
int tern__cpu_copy(const tern__call *call);
#define K(id, name, inputs, outputs) int tern__cpu_##name(const tern__call *call);
#define G(id, name, inputs, outputs)
#include "kernels/kernels.def"

/* Kernels for a part of the calls; E_UNSUPPORTED: it is another part. */

/* A sum over all but the channels of a blocked tensor. */
int tern__cpu_channel_sum(const tern__call *call);
/* In f64, all kernels of the name, depending on call->kernel. */
int tern__f64_batch_norm(const tern__call *call);
int tern__f64_group_norm(const tern__call *call);
int tern__f64_interpolate(const tern__call *call);
int tern__f64_pool(const tern__call *call);

#endif
