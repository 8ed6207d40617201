/* norm_factors.h - what norms say about an update, and the attributes of the NORM_FACTORS kernel. */
#ifndef TERN_SRC_KERNELS_NORM_FACTORS_H
#define TERN_SRC_KERNELS_NORM_FACTORS_H

#include "base/host_device.h"

#include <math.h>
#include <stdbool.h>

/* Of which sums (n, 1), or pairs of them (n, 2), the norms x and y are, and what they are for. */
typedef enum tern__norm_use {
    TERN__NORM_CLIP,   /* x of all gradients; PyTorch's clipping: they are multiplied with most / (x + eps) if
                        * that is below 1, or NaN                                                          */
    TERN__NORM_LIMIT,  /* the same; LAMB's: with most / x, unless x is at most that, or NaN                */
    TERN__NORM_TRUST,  /* x of a parameter, y of its update; LAMB's: x / y is the rate's                   */
    TERN__NORM_ADAPTED /* x of a parameter, y of its gradient; LARC's rate is the gradient's               */
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

/* By what an update's lr, scale and decay are multiplied (kernels/optim.h). */
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
