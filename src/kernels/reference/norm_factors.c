#include "kernels/norm_factors.h"
#include "kernels/reference/reference.h"

/* Nothing is larger than a NaN. */
static double join(double a, double b, double p)
{
    return isinf(p) ? (b > a || b != b ? b : a) : a + b;
}

int tern__reference_norm_factors(const tern__call *call)
{
    const tern__norm_attr *attr = call->attr;
    const tern__view *sums = call->in[0];
    double all[2] = {0, 0}, factors[3];
    int64_t columns = sums->shape[1], count = tern__view_count(sums);
    for (int64_t i = 0; i < count; i++)
        all[i % columns] = join(all[i % columns], tern__view_get(sums, i), attr->p);
    double x = tern__norm_root(all[0], attr->p), y = tern__norm_root(all[1], attr->p);
    tern__norm_factors(attr, x, y, factors);
    for (int i = 0; i < 3; i++) tern__view_set(call->out[0], i, factors[i]);
    if (call->out[1]) tern__view_set(call->out[1], 0, x);
    return TERN_OK;
}
