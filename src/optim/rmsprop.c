/* rmsprop.c - the rule and options of RMSprop, as in torch.optim. */
#include "optim/optim.h"

static const tern_rmsprop_opts defaults = {
    .size = sizeof(tern_rmsprop_opts), .lr = 0.01, .alpha = 0.99, .eps = 1e-8};

tern_rmsprop_opts tern_rmsprop_defaults(void)
{
    return defaults;
}

static tern__optim_attr rmsprop_attr_of(const tern__optim_group *group, int64_t count)
{
    const tern_rmsprop_opts *o = &group->opts.rmsprop;
    (void)count;
    return (tern__optim_attr){
        .rmsprop = {.step = tern__step_attr_make(group->rate, o->maximize, o->weight_decay, count),
                    .alpha = o->alpha,
                    .eps = o->eps,
                    .momentum = o->momentum}};
}

static int rmsprop_check(const char *func, const tern_rmsprop_opts *o, tern_error *err)
{
    if (!(o->lr >= 0) || !(o->eps >= 0) || !(o->weight_decay >= 0) || !(o->momentum >= 0))
        return tern__error_set(
            err, func, TERN_E_RANGE,
            "rmsprop: expected lr, eps, weight_decay and momentum >= 0, got %g, %g, %g and %g", o->lr, o->eps,
            o->weight_decay, o->momentum);
    if (!(o->alpha >= 0))
        return tern__error_set(err, func, TERN_E_RANGE, "rmsprop: expected alpha >= 0, got %g", o->alpha);
    return TERN_OK;
}

enum { SQUARE_AVG = 1, MOMENTUM_BUFFER = 2, GRAD_AVG = 4 };

static int rmsprop_settle(const char *func, tern__optim_group *group, tern_error *err)
{
    const tern_rmsprop_opts *o = &group->opts.rmsprop;
    group->states = SQUARE_AVG | (o->momentum > 0 ? MOMENTUM_BUFFER : 0) | (o->centered ? GRAD_AVG : 0);
    return rmsprop_check(func, o, err);
}

static const tern__option options[] = {
    {"momentum", TERN__OPTION_REAL, offsetof(tern_rmsprop_opts, momentum)},
    {"alpha", TERN__OPTION_REAL, offsetof(tern_rmsprop_opts, alpha)},
    {"eps", TERN__OPTION_REAL, offsetof(tern_rmsprop_opts, eps)},
    {"centered", TERN__OPTION_BOOL, offsetof(tern_rmsprop_opts, centered)},
    {"weight_decay", TERN__OPTION_REAL, offsetof(tern_rmsprop_opts, weight_decay)},
    {"foreach", TERN__OPTION_NONE, 0},
    {"maximize", TERN__OPTION_BOOL, offsetof(tern_rmsprop_opts, maximize)},
    {"differentiable", TERN__OPTION_FALSE, 0},
    {NULL, TERN__OPTION_NONE, 0}};

static const tern__optim_rule rule = {.name = "rmsprop",
                                      .kernel = TERN__RMSPROP,
                                      .attr = rmsprop_attr_of,
                                      .attr_bytes = sizeof(tern__rmsprop_attr),
                                      .states = {"square_avg", "momentum_buffer", "grad_avg"},
                                      .options = options,
                                      .defaults = &defaults,
                                      .opts_bytes = sizeof(defaults),
                                      .settle = rmsprop_settle};

tern_optim *tern_rmsprop_new(tern_module *module, const tern_rmsprop_opts *opts, tern_error *err)
{
    return tern__optim_new(__func__, &rule, module, opts, err);
}

int tern_rmsprop_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                           const tern_rmsprop_opts *opts, tern_error *err)
{
    return tern__optim_group_add(__func__, TERN__RMSPROP, optim, belongs, ctx, opts, err);
}
