/* adagrad.c - the rule and options of Adagrad, as in torch.optim. */
#include "optim/optim.h"

static const tern_adagrad_opts defaults = {.size = sizeof(tern_adagrad_opts), .lr = 0.01, .eps = 1e-10};

tern_adagrad_opts tern_adagrad_defaults(void)
{
    return defaults;
}

static tern__optim_attr adagrad_attr_of(const tern__optim_group *group, int64_t count)
{
    const tern_adagrad_opts *o = &group->opts.adagrad;
    return (tern__optim_attr){
        .adagrad = {.step = tern__step_attr_make(group->rate, o->maximize, o->weight_decay, count),
                    .eps = o->eps,
                    .start = o->initial_accumulator_value,
                    .lr_decay = o->lr_decay}};
}

static int adagrad_check(const char *func, const tern_adagrad_opts *o, tern_error *err)
{
    if (!(o->lr >= 0) || !(o->eps >= 0) || !(o->weight_decay >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "adagrad: expected lr, eps and weight_decay >= 0, got %g, %g and %g", o->lr,
                               o->eps, o->weight_decay);
    if (!(o->lr_decay >= 0) || !(o->initial_accumulator_value >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "adagrad: expected lr_decay and initial_accumulator_value >= 0, got %g and %g",
                               o->lr_decay, o->initial_accumulator_value);
    return TERN_OK;
}

static int adagrad_settle(const char *func, tern__optim_group *group, tern_error *err)
{
    group->states = 1;
    return adagrad_check(func, &group->opts.adagrad, err);
}

static const tern__option options[] = {
    {"lr_decay", TERN__OPTION_REAL, offsetof(tern_adagrad_opts, lr_decay)},
    {"eps", TERN__OPTION_REAL, offsetof(tern_adagrad_opts, eps)},
    {"weight_decay", TERN__OPTION_REAL, offsetof(tern_adagrad_opts, weight_decay)},
    {"initial_accumulator_value", TERN__OPTION_REAL, offsetof(tern_adagrad_opts, initial_accumulator_value)},
    {"foreach", TERN__OPTION_NONE, 0},
    {"maximize", TERN__OPTION_BOOL, offsetof(tern_adagrad_opts, maximize)},
    {"differentiable", TERN__OPTION_FALSE, 0},
    {NULL, TERN__OPTION_NONE, 0}};

static double initial(const tern__optim_group *group)
{
    return group->opts.adagrad.initial_accumulator_value;
}

static const tern__optim_rule rule = {.name = "adagrad",
                                      .kernel = TERN__ADAGRAD,
                                      .attr = adagrad_attr_of,
                                      .attr_bytes = sizeof(tern__adagrad_attr),
                                      .states = {"sum"},
                                      .counts = true,
                                      .initial = initial,
                                      .options = options,
                                      .defaults = &defaults,
                                      .opts_bytes = sizeof(defaults),
                                      .settle = adagrad_settle};

tern_optim *tern_adagrad_new(tern_module *module, const tern_adagrad_opts *opts, tern_error *err)
{
    return tern__optim_new(__func__, &rule, module, opts, err);
}

int tern_adagrad_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                           const tern_adagrad_opts *opts, tern_error *err)
{
    return tern__optim_group_add(__func__, TERN__ADAGRAD, optim, belongs, ctx, opts, err);
}
