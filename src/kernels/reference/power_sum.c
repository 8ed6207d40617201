/* power_sum.c - the sum of |x|^p, or the maximum of |x|, of a tensor or of its sections. */
#include "kernels/power_sum.h"
#include "kernels/sections.h"
#include "kernels/reference/reference.h"

#include <math.h>

static double sum_of(const tern__view *x, tern__section section, double p)
{
    double sum = 0;
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double size = fabs(tern__view_get(x, i));
        if (!isinf(p))
            sum += pow(size, p);
        else if (size > sum || size != size) /* a NaN is the largest */
            sum = size;
    }
    return sum;
}

int tern__reference_power_sum(const tern__call *call)
{
    const tern__view *x = call->in[0], *sections = call->in[1];
    int64_t count = tern__section_count(sections), all = tern__view_count(x);
    for (int64_t n = 0; n < count; n++) {
        tern__section section = tern__section_get(tern__section_table(sections), n, all);
        tern__reference_put(call, 0, n, sum_of(x, section, ((const tern__power_attr *)call->attr)->p));
    }
    return TERN_OK;
}
