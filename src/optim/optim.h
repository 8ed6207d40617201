/* optim.h - an optimizer from inside: groups of parameters, their state, and the rule of the update. */
#ifndef TERN_SRC_OPTIM_H
#define TERN_SRC_OPTIM_H

#include "kernels/optim.h"
#include "nn/nn.h"

#include <tern/optim.h>

#define TERN__OPTIM_STATES (TERN__KERNEL_OUTS - 1)

typedef struct tern__optim_group {
    union {
        tern_sgd_opts sgd;
        tern_adam_opts adam;
    } opts;
    double lr;  /* before the schedules                           */
    int states; /* how many elements of state a parameter's has   */
} tern__optim_group;

typedef union tern__optim_attr {
    tern__sgd_attr sgd;
    tern__adam_attr adam;
} tern__optim_attr;

/* What SGD, Adam and AdamW differ in. The kernel's input is the gradient, its outputs are the parameter and
 * the states. */
typedef struct tern__optim_rule {
    tern__kernel kernel;
    /* The kernel's attributes for a parameter's own step number `step`, from 1. */
    tern__optim_attr (*attr)(const tern__optim_group *group, double lr, int64_t step);
} tern__optim_rule;

struct tern_optim {
    const tern__optim_rule *rule;
    tern__seal *seal; /* borrowed from the module                                  */
    int *group_of;    /* [leaf_count]; -1: a parameter that is not under the module */
    int64_t *steps;   /* [leaf_count] updates of each parameter                     */
    tern__optim_group *groups;
    int group_count;
    bool stepped;
    /* State is parallel to the bytes [begin, end) of a range, which our parameters lie in; NULL if no group
     * wants it. */
    size_t begin[TERN_DTYPE_COUNT], end[TERN_DTYPE_COUNT];
    char *state[TERN__OPTIM_STATES][TERN_DTYPE_COUNT];
    double factor;            /* the schedules' product                */
    tern_schedule *schedules; /* all that are alive, the newest first  */
};

/* An optimizer with one group of all parameters under `module`. NULL sets *err in the name of `func`. */
tern_optim *tern__optim_new(const char *func, const tern__optim_rule *rule, tern_module *module,
                            const tern__optim_group *group, tern_error *err);
/* tern_sgd_group_add and tern_adam_group_add with options that have been read. */
int tern__optim_group_add(const char *func, tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                          const tern__optim_group *group, tern_error *err);
/* TERN_OK if a group may be added to this optimizer, whose rule's kernel must be this one. */
int tern__optim_group_check(const char *func, const tern_optim *optim, tern__kernel kernel,
                            tern_parameter_fn belongs, tern_error *err);

#endif
