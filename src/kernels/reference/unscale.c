#include "kernels/unscale.h"
#include "kernels/reference/reference.h"

#include <math.h>

int tern__reference_unscale(const tern__call *call)
{
    const tern__unscale_attr *attr = call->attr;
    double bad = 0;
    int64_t count = tern__view_count(call->in[0]);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(call->in[0], i);
        bad += !isfinite(value);
        if (call->out[0]) tern__view_set(call->out[0], i, value * attr->factor);
    }
    tern__reference_put(call, 1, 0, bad);
    return TERN_OK;
}
