/* unscale.c - multiplies a gradient by a factor and counts its non-finite elements. */
#include "kernels/unscale.h"
#include "kernels/reference/reference.h"

#include <math.h>

static double number(const tern__call *call, int in, double absent)
{
    return call->in[in] ? tern__view_get(call->in[in], 0) : absent;
}

int tern__reference_unscale(const tern__call *call)
{
    double factor = ((const tern__unscale_attr *)call->attr)->factor * number(call, TERN__UNSCALE_FACTOR, 1);
    bool drop = number(call, TERN__UNSCALE_DROP, 0) != 0;
    double bad = 0;
    int64_t count = tern__view_count(call->in[0]);
    for (int64_t i = 0; i < count; i++) {
        double value = drop ? 0 : tern__view_get(call->in[0], i);
        bad += !isfinite(value);
        if (call->out[0]) tern__view_set(call->out[0], i, value * factor);
    }
    if (call->out[1]) tern__reference_put(call, 1, 0, bad);
    return TERN_OK;
}
