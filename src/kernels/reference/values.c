/* values.c - numbers that control a step: gradients times a factor, loss scales, norms and the factors
 * computed from them. */
#include "kernels/loss_scale.h"
#include "kernels/norm_factors.h"
#include "kernels/reference/reference.h"
#include "kernels/sections.h"

#include <math.h>

static double values_number(const tern__call *call, int in, double absent)
{
    return call->in[in] ? tern__view_get(call->in[in], 0) : absent;
}

int tern__reference_unscale(const tern__call *call)
{
    double factor =
        ((const tern__unscale_attr *)call->attr)->factor * values_number(call, TERN__UNSCALE_FACTOR, 1);
    bool drop = values_number(call, TERN__UNSCALE_DROP, 0) != 0;
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

int tern__reference_scale_update(const tern__call *call)
{
    double numbers[TERN__LOSS_SCALE_NUMBERS];
    for (int i = 0; i < TERN__LOSS_SCALE_NUMBERS; i++) numbers[i] = tern__view_get(call->in[0], i);
    tern__loss_scale scale = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    tern__loss_scale_update(&scale, call->attr);
    const double updated[] = {scale.scale, scale.inverse, scale.unskipped, scale.found, scale.overflows};
    for (int i = 0; i < TERN__LOSS_SCALE_NUMBERS; i++) tern__view_set(call->out[0], i, updated[i]);
    return TERN_OK;
}

/* ---- norms ---- */

/* The sum of |x|^p, or the maximum of |x|. */
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

/* For p = infinity the maximum, in which a NaN wins; else the sum. */
static double values_join(double a, double b, double p)
{
    return isinf(p) ? (b > a || b != b ? b : a) : a + b;
}

/* Writes the factors for section n. */
static void values_decide(const tern__call *call, int64_t n)
{
    const tern__norm_attr *attr = call->attr;
    const tern__view *sums = call->in[0];
    tern__section section = tern__section_get(tern__section_table(call->in[1]), n, sums->shape[0]);
    double all[2] = {0, 0}, factors[3];
    int64_t columns = sums->shape[1], first = section.begin * columns;
    for (int64_t i = first; i < first + section.count * columns; i++)
        all[i % columns] = values_join(all[i % columns], tern__view_get(sums, i), attr->p);
    double x = tern__norm_root(all[0], attr->p), y = tern__norm_root(all[1], attr->p);
    tern__norm_factors(attr, x, y, factors);
    for (int i = 0; i < 3; i++) tern__view_set(call->out[0], 3 * section.row + i, factors[i]);
    if (call->out[1]) tern__view_set(call->out[1], 0, x);
}

int tern__reference_norm_factors(const tern__call *call)
{
    int64_t count = tern__section_count(call->in[1]);
    for (int64_t n = 0; n < count; n++) values_decide(call, n);
    return TERN_OK;
}
