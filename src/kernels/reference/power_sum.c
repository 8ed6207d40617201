#include "kernels/power_sum.h"
#include "kernels/reference/reference.h"

#include <math.h>

int tern__reference_power_sum(const tern__call *call)
{
    double p = ((const tern__power_attr *)call->attr)->p, sum = 0;
    int64_t count = tern__view_count(call->in[0]);
    for (int64_t i = 0; i < count; i++) {
        double size = fabs(tern__view_get(call->in[0], i));
        if (!isinf(p))
            sum += pow(size, p);
        else if (size > sum || size != size) /* nothing is larger than a NaN */
            sum = size;
    }
    tern__reference_put(call, 0, 0, sum);
    return TERN_OK;
}
