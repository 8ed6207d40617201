/* optim.h - attributes of the optimizers' kernels. */
#ifndef TERN_SRC_KERNELS_OPTIM_H
#define TERN_SRC_KERNELS_OPTIM_H

/* Of all of them: the output that becomes p in another dtype, where p is an f32 master of it. */
#define TERN__OPTIM_COPY 4

/* What all attributes begin with. The gradient that an update is made with is d = scale g + decay p: weight
 * decay, the sign for a maximum, and whatever a gradient was multiplied with on its way. */
typedef struct tern__step_attr {
    double lr, scale, decay;
} tern__step_attr;

typedef struct tern__sgd_attr {
    tern__step_attr step;
    double momentum, dampening;
    double nesterov, first; /* 0 or 1; first: there is no momentum yet */
} tern__sgd_attr;

typedef struct tern__adam_attr {
    tern__step_attr step;
    double beta1, beta2, eps;
    double keep;  /* p is multiplied by it before the update: AdamW's weight decay */
    double count; /* of the parameter's steps, this one included                   */
} tern__adam_attr;

typedef struct tern__rmsprop_attr {
    tern__step_attr step;
    double alpha, eps, momentum;
} tern__rmsprop_attr;

typedef struct tern__adagrad_attr {
    tern__step_attr step;
    double eps;
    double start, first; /* in the first step (1, else 0) the sum is `start` before */
} tern__adagrad_attr;

/* The update is u = unbias1 m / (unbias2 sqrt(v) + eps) + pull p. Norms are summed up in pieces: the first
 * `lead` elements, then `piece` at a time. */
typedef struct tern__lamb_attr {
    tern__step_attr step;
    double beta1, take, beta2; /* m = beta1 m + take d */
    double unbias1, unbias2, eps, pull;
    double lead, piece;
} tern__lamb_attr;

#endif
