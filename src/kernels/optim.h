/* optim.h - attributes of the optimizers' kernels, and what is used in the list of their updates
 * (optim.def). */
#ifndef TERN_SRC_KERNELS_OPTIM_H
#define TERN_SRC_KERNELS_OPTIM_H

#include "base/host_device.h"
#include "kernels/kernel.h"

#include <math.h>
#include <stddef.h>

/* Output of all optimizers: p in another dtype, where p is its f32 master. */
#define TERN__OPTIM_COPY 4
/* Output of a first pass, LAMB_MOMENTS: the sums by section. */
#define TERN__OPTIM_SUMS 3

/* Inputs after the gradient, mostly numbers in device memory that the host does not know; NULL: none. */
#define TERN__OPTIM_FACTORS  1 /* f64 (3), or (n, 3) by section: factors for lr, scale and decay */
#define TERN__OPTIM_SKIP     2 /* f64 (): if not 0, nothing changes */
#define TERN__OPTIM_SKIPPED  3 /* f64 (): how many of the `count` steps have changed nothing */
#define TERN__OPTIM_SECTIONS 4 /* sections.h; elements outside of all sections stay unchanged */

/* All attributes begin with this. The gradient used by an update is d = scale g + decay p: it includes
 * weight decay, the sign for maximising, and the inverse of any factor that the gradient was scaled by. */
typedef struct tern__step_attr {
    double lr, scale, decay;
    double count; /* the parameter's steps, including this one */
} tern__step_attr;

typedef struct tern__sgd_attr {
    tern__step_attr step; /* in the first step there is no momentum yet */
    double momentum, dampening;
    double nesterov; /* 0 or 1 */
} tern__sgd_attr;

typedef struct tern__adam_attr {
    tern__step_attr step;
    double beta1, beta2, eps;
    double keep; /* p is multiplied by it before the update: AdamW's weight decay */
} tern__adam_attr;

typedef struct tern__rmsprop_attr {
    tern__step_attr step;
    double alpha, eps, momentum;
} tern__rmsprop_attr;

typedef struct tern__adagrad_attr {
    tern__step_attr step;
    double eps;
    double start;    /* value of the sum before the first step */
    double lr_decay; /* decay of the rate per step */
} tern__adagrad_attr;

/* The update is u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + pull p, where t is the count: a
 * macro, because it is compiled for several types. */
#define TERN__LAMB_UPDATE(p, m, v) (unbias1 * (m) / (unbias2 * sqrt(v) + eps) + pull * (p))
typedef struct tern__lamb_attr {
    tern__step_attr step;
    double beta1, take, beta2; /* m = beta1 m + take d */
    double unbias;             /* 1: divide by 1 - beta^t as above; 0: do not */
    double eps, pull;
} tern__lamb_attr, tern__lamb_moments_attr;

typedef union tern__optim_attr {
    tern__step_attr step;
    tern__sgd_attr sgd;
    tern__adam_attr adam;
    tern__rmsprop_attr rmsprop;
    tern__adagrad_attr adagrad;
    tern__lamb_attr lamb;
} tern__optim_attr;

/* The mask of the states that a call has: bit s for output 1 + s. */
static inline unsigned tern__optim_states(const tern__call *call)
{
    unsigned has = 0;
    for (int s = 0; s < 3; s++) has |= (unsigned)(call->out[1 + s] != NULL) << s;
    return has;
}

/* ---- values that depend on the count, computed once per call ---- */

TERN__ANYWHERE void tern__step_settle(tern__step_attr *step, const double *factors, const double *skipped)
{
    if (factors) {
        step->lr *= factors[0];
        step->scale *= factors[1];
        step->decay *= factors[2];
    }
    if (skipped) step->count -= *skipped;
}

TERN__ANYWHERE double tern__adagrad_rate(const tern__adagrad_attr *a)
{
    return a->step.lr / (1 + (a->step.count - 1) * a->lr_decay);
}

/* Factors of m and sqrt(v). */
TERN__ANYWHERE double tern__lamb_unbias1(const tern__lamb_attr *a)
{
    return a->unbias != 0 ? 1 / (1 - pow(a->beta1, a->step.count)) : 1;
}
TERN__ANYWHERE double tern__lamb_unbias2(const tern__lamb_attr *a)
{
    return a->unbias != 0 ? 1 / sqrt(1 - pow(a->beta2, a->step.count)) : 1;
}

#endif
