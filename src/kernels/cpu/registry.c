/* registry.c - the table of the CPU's kernels. */
#include "kernels/cpu/cpu.h"

const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT] = {
#define K(id, name, inputs, outputs) [TERN__##id] = tern__cpu_##name,
#define G(id, name, inputs, outputs)
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__cpu_pointwise,
#include "kernels/kernels.def"
};
