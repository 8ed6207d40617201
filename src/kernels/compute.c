/* compute.c - the type in which a kernel computes. */
#include "kernels/compute.h"

tern__compute tern__compute_of(const tern__view *const *views, int count)
{
    bool f64 = false, real = false, integer = false;
    for (int i = 0; i < count; i++) {
        if (!views[i]) continue;
        f64 |= views[i]->dtype == TERN_F64;
        real |= tern__dtype_is_float(views[i]->dtype);
        integer |= views[i]->dtype == TERN_I64 || views[i]->dtype == TERN_I32;
    }
    if (!real) return TERN__COMPUTE_I64;
    return f64 || integer ? TERN__COMPUTE_F64 : TERN__COMPUTE_F32;
}

tern_dtype tern__compute_dtype(tern__compute compute)
{
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_I64};
    return dtypes[compute];
}
