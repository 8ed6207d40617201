/* optim.h - attributes of the optimizers' kernels. */
#ifndef TERN_SRC_KERNELS_OPTIM_H
#define TERN_SRC_KERNELS_OPTIM_H

#include "base/host_device.h"

#include <math.h>
#include <stddef.h>

/* Of all of them: the output that becomes p in another dtype, where p is an f32 master of it. */
#define TERN__OPTIM_COPY 4
/* Of LAMB_MOMENTS: the output of sums. */
#define TERN__LAMB_SUMS 3

/* Inputs behind the gradient, mostly numbers in a device's memory that the host does not know; NULL: there
 * are none. */
#define TERN__OPTIM_FACTORS  1 /* f64 (3), or (n, 3) by section: lr, scale and decay times them */
#define TERN__OPTIM_SKIP     2 /* f64 (): unless it is 0 nothing changes                        */
#define TERN__OPTIM_SKIPPED  3 /* f64 (): so many of the `count` steps have changed nothing     */
#define TERN__OPTIM_SECTIONS 4 /* sections.h; what is in none of them stays as it is            */

/* What all attributes begin with. The gradient that an update is made with is d = scale g + decay p: weight
 * decay, the sign for a maximum, and whatever a gradient was multiplied with on its way. */
typedef struct tern__step_attr {
    double lr, scale, decay;
    double count; /* of the parameter's steps, this one included */
} tern__step_attr;

typedef struct tern__sgd_attr {
    tern__step_attr step; /* in the first one there is no momentum yet */
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
    double start;    /* of the sum, in the first step */
    double lr_decay; /* of the rate, step by step     */
} tern__adagrad_attr;

/* The update is u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + pull p, t being the count. */
typedef struct tern__lamb_attr {
    tern__step_attr step;
    double beta1, take, beta2; /* m = beta1 m + take d */
    double unbias;             /* 0: without those divisions, else 1 */
    double eps, pull;
} tern__lamb_attr;

typedef union tern__optim_attr {
    tern__step_attr step;
    tern__sgd_attr sgd;
    tern__adam_attr adam;
    tern__rmsprop_attr rmsprop;
    tern__adagrad_attr adagrad;
    tern__lamb_attr lamb;
} tern__optim_attr;

/* ---- what depends on the count, once a call ---- */

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

/* What m and sqrt(v) are multiplied with. */
TERN__ANYWHERE double tern__lamb_unbias1(const tern__lamb_attr *a)
{
    return a->unbias != 0 ? 1 / (1 - pow(a->beta1, a->step.count)) : 1;
}
TERN__ANYWHERE double tern__lamb_unbias2(const tern__lamb_attr *a)
{
    return a->unbias != 0 ? 1 / sqrt(1 - pow(a->beta2, a->step.count)) : 1;
}

#endif
