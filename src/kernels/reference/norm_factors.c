/* norm_factors.c - factors of an optimizer's update from norms. */
#include "kernels/norm_factors.h"
#include "kernels/sections.h"
#include "kernels/reference/reference.h"

/* For p = infinity the maximum, in which a NaN wins; else the sum. */
static double join(double a, double b, double p)
{
    return isinf(p) ? (b > a || b != b ? b : a) : a + b;
}

/* Writes the factors for section n. */
static void decide(const tern__call *call, int64_t n)
{
    const tern__norm_attr *attr = call->attr;
    const tern__view *sums = call->in[0];
    tern__section section = tern__section_get(tern__section_table(call->in[1]), n, sums->shape[0]);
    double all[2] = {0, 0}, factors[3];
    int64_t columns = sums->shape[1], first = section.begin * columns;
    for (int64_t i = first; i < first + section.count * columns; i++)
        all[i % columns] = join(all[i % columns], tern__view_get(sums, i), attr->p);
    double x = tern__norm_root(all[0], attr->p), y = tern__norm_root(all[1], attr->p);
    tern__norm_factors(attr, x, y, factors);
    for (int i = 0; i < 3; i++) tern__view_set(call->out[0], 3 * section.row + i, factors[i]);
    if (call->out[1]) tern__view_set(call->out[1], 0, x);
}

int tern__reference_norm_factors(const tern__call *call)
{
    int64_t count = tern__section_count(call->in[1]);
    for (int64_t n = 0; n < count; n++) decide(call, n);
    return TERN_OK;
}
