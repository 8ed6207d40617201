/* sgd.c - the rule and options of SGD, as in torch.optim. */
#include "optim/optim.h"

static const tern_sgd_opts defaults = {.size = sizeof(tern_sgd_opts), .lr = 1e-3};

tern_sgd_opts tern_sgd_defaults(void)
{
    return defaults;
}

static tern__optim_attr sgd_attr_of(const tern__optim_group *group, int64_t count)
{
    const tern_sgd_opts *o = &group->opts.sgd;
    return (tern__optim_attr){
        .sgd = {.step = tern__step_attr_make(group->rate, o->maximize, o->weight_decay, count),
                .momentum = o->momentum,
                .dampening = o->dampening,
                .nesterov = o->nesterov}};
}

static int sgd_check(const char *func, const tern_sgd_opts *o, tern_error *err)
{
    if (!(o->lr >= 0) || !(o->momentum >= 0) || !(o->weight_decay >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "sgd: expected lr, momentum and weight_decay >= 0, got %g, %g and %g", o->lr,
                               o->momentum, o->weight_decay);
    if (!(o->dampening >= 0 && o->dampening <= 1))
        return tern__error_set(err, func, TERN_E_RANGE, "sgd: expected dampening from 0 to 1, got %g",
                               o->dampening);
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return tern__error_set(
            err, func, TERN_E_INVALID,
            "sgd: nesterov wants a momentum > 0 and no dampening, got momentum %g and dampening %g",
            o->momentum, o->dampening);
    return TERN_OK;
}

static int sgd_settle(const char *func, tern__optim_group *group, tern_error *err)
{
    group->states = group->opts.sgd.momentum > 0;
    return sgd_check(func, &group->opts.sgd, err);
}

static const tern__option options[] = {
    {"momentum", TERN__OPTION_REAL, offsetof(tern_sgd_opts, momentum)},
    {"dampening", TERN__OPTION_REAL, offsetof(tern_sgd_opts, dampening)},
    {"weight_decay", TERN__OPTION_REAL, offsetof(tern_sgd_opts, weight_decay)},
    {"nesterov", TERN__OPTION_BOOL, offsetof(tern_sgd_opts, nesterov)},
    {"maximize", TERN__OPTION_BOOL, offsetof(tern_sgd_opts, maximize)},
    {"foreach", TERN__OPTION_NONE, 0},
    {"differentiable", TERN__OPTION_FALSE, 0},
    {NULL, TERN__OPTION_NONE, 0}};

static const tern__optim_rule rule = {.name = "sgd",
                                      .kernel = TERN__SGD,
                                      .attr = sgd_attr_of,
                                      .attr_bytes = sizeof(tern__sgd_attr),
                                      .states = {"momentum_buffer"},
                                      .stepless = true,
                                      .options = options,
                                      .defaults = &defaults,
                                      .opts_bytes = sizeof(defaults),
                                      .settle = sgd_settle};

tern_optim *tern_sgd_new(tern_module *module, const tern_sgd_opts *opts, tern_error *err)
{
    return tern__optim_new(__func__, &rule, module, opts, err);
}

int tern_sgd_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx, const tern_sgd_opts *opts,
                       tern_error *err)
{
    return tern__optim_group_add(__func__, TERN__SGD, optim, belongs, ctx, opts, err);
}
