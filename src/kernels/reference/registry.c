/* registry.c - the table of the reference kernels. */
#include "kernels/reference/reference.h"

const tern__kernel_fn tern__reference_kernels[TERN__KERNEL_COUNT] = {
#define K(id, name, inputs, outputs)            [TERN__##id] = tern__reference_##name,
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__reference_pointwise,
#include "kernels/kernels.def"
};
