/* reference.h - the reference kernels: plain loops over the indices of the formula, sums in double, any
 * dtype, strides and layout. They are the oracle for the fast kernels and the fallback for calls that
 * those do not take. */
#ifndef TERN_SRC_KERNELS_REFERENCE_H
#define TERN_SRC_KERNELS_REFERENCE_H

#include "kernels/kernel.h"

/* out[i] = value, or += where the caller adds. */
static inline void tern__reference_put(const tern__call *call, int out, int64_t i, double value)
{
    const tern__view *view = call->out[out];
    tern__view_set(view, i, call->add[out] ? tern__view_get(view, i) + value : value);
}

/* Allocates sums in double: one for each distinct element of the output, at its offset, initialised to
 * `start`; NULL: E_MEMORY. `put` then stores or adds factor times the sums to the output. */
double *tern__reference_sums_new(const tern__call *call, double start);
void tern__reference_sums_put(const tern__call *call, const double *sums, double factor);

int tern__reference_pointwise(const tern__call *call);
#define K(id, name, inputs, outputs) int tern__reference_##name(const tern__call *call);
#include "kernels/kernels.def"

#endif
