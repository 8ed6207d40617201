/* norm_factors.h - norms and the factors of an optimizer's update from them, and the attributes of the
 * kernels POWER_SUM and NORM_FACTORS. */
#ifndef TERN_SRC_KERNELS_NORM_FACTORS_H
#define TERN_SRC_KERNELS_NORM_FACTORS_H

#include "base/host_device.h"

#include <math.h>
#include <stdbool.h>

typedef struct tern__power_attr {
    double p; /* > 0, or INFINITY */
} tern__power_attr;

/* What the norms x and y are of, and what they are used for. The input has sums (n, 1), or pairs of sums
 * (n, 2), for x and y. */
typedef enum tern__norm_use {
    TERN__NORM_CLIP,   /* x of all gradients. PyTorch's clipping: the gradients are multiplied by most / (x
                        * + eps) if that is below 1 or NaN */
    TERN__NORM_LIMIT,  /* x of all gradients. LAMB's clipping: by most / x, unless x is at most `most` or NaN
                        */
    TERN__NORM_TRUST,  /* x of a parameter, y of its update. LAMB multiplies the learning rate by x / y */
    TERN__NORM_ADAPTED /* x of a parameter, y of its gradient. LARC's rate scales the gradient */
} tern__norm_use;

typedef struct tern__norm_attr {
    double use, p, most, eps;
    double coefficient, decay, rate, clip; /* LARC's; clip: 0 or 1 */
} tern__norm_attr;

TERN__ANYWHERE double tern__norm_root(double sum, double p)
{
    return isinf(p) ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
}

TERN__ANYWHERE double tern__norm_adapted(const tern__norm_attr *a, double x, double y)
{
    double adapted = a->coefficient * x / (y + x * a->decay + a->eps);
    if (a->clip == 0) return adapted;
    return 1 < adapted / a->rate ? 1 : adapted / a->rate;
}

/* Factors for an update's lr, scale and decay (kernels/optim.h). */
TERN__ANYWHERE void tern__norm_factors(const tern__norm_attr *a, double x, double y, double factors[3])
{
    double clipped = a->most / (x + a->eps);
    bool both = x != 0 && y != 0;
    factors[0] = factors[1] = factors[2] = 1;
    switch ((int)a->use) {
    case TERN__NORM_CLIP: factors[1] = clipped >= 1 ? 1 : clipped; break;
    case TERN__NORM_LIMIT: factors[1] = x > a->most ? a->most / x : 1; break;
    case TERN__NORM_TRUST: factors[0] = both ? x / y : 1; break;
    default: factors[1] = both ? tern__norm_adapted(a, x, y) : 1; factors[2] = both ? factors[1] : 0;
    }
}

#endif
