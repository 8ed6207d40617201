/* optim.h - attributes of the optimizers' kernels. */
#ifndef TERN_SRC_KERNELS_OPTIM_H
#define TERN_SRC_KERNELS_OPTIM_H

typedef struct tern__sgd_attr {
    double lr, momentum, dampening, weight_decay;
    double nesterov, maximize, first; /* 0 or 1; first: there is no momentum yet */
} tern__sgd_attr;

typedef struct tern__adam_attr {
    double lr, beta1, beta2, eps, weight_decay;
    double decoupled, maximize; /* 0 or 1; decoupled: weight decay as in AdamW */
    double step;                /* from 1                                      */
} tern__adam_attr;

#endif
