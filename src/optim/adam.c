/* adam.c - Adam and AdamW, which differ in their default weight decay and in where it acts. */
#include "optim/optim.h"

#define OPTS(...)                                                                                            \
    {                                                                                                        \
        .size = sizeof(tern_adam_opts), .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, __VA_ARGS__   \
    }
static const tern_adam_opts adam_defaults = OPTS(.weight_decay = 0),
                            adamw_defaults = OPTS(.weight_decay = 0.01);
#undef OPTS

tern_adam_opts tern_adam_defaults(void)
{
    return adam_defaults;
}

tern_adam_opts tern_adamw_defaults(void)
{
    return adamw_defaults;
}

static tern__optim_attr adam_attr(const tern__optim_group *group, int64_t count)
{
    const tern_adam_opts *o = &group->opts.adam;
    return (tern__optim_attr){
        .adam = {.step = tern__step_attr_make(group->rate, o->maximize, o->weight_decay, count),
                 .beta1 = o->beta1,
                 .beta2 = o->beta2,
                 .eps = o->eps,
                 .keep = 1}};
}

static tern__optim_attr adamw_attr(const tern__optim_group *group, int64_t count)
{
    tern__optim_attr attr = adam_attr(group, count);
    attr.adam.keep = 1 - attr.step.lr * attr.step.decay;
    attr.step.decay = 0;
    return attr;
}

static int adam_check(const char *func, const tern_adam_opts *o, tern_error *err)
{
    if (!(o->lr >= 0) || !(o->eps >= 0) || !(o->weight_decay >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "adam: expected lr, eps and weight_decay >= 0, got %g, %g and %g", o->lr,
                               o->eps, o->weight_decay);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "adam: expected beta1 and beta2 from 0 to below 1, got %g and %g", o->beta1,
                               o->beta2);
    return TERN_OK;
}

static int adam_settle(const char *func, tern__optim_group *group, tern_error *err)
{
    group->states = group->opts.adam.amsgrad ? 7 : 3;
    return adam_check(func, &group->opts.adam, err);
}

static const tern__option options[] = {
    {"betas", TERN__OPTION_PAIR, offsetof(tern_adam_opts, beta1)},
    {"eps", TERN__OPTION_REAL, offsetof(tern_adam_opts, eps)},
    {"weight_decay", TERN__OPTION_REAL, offsetof(tern_adam_opts, weight_decay)},
    {"amsgrad", TERN__OPTION_BOOL, offsetof(tern_adam_opts, amsgrad)},
    {"maximize", TERN__OPTION_BOOL, offsetof(tern_adam_opts, maximize)},
    {"foreach", TERN__OPTION_NONE, 0},
    {"capturable", TERN__OPTION_FALSE, 0},
    {"differentiable", TERN__OPTION_FALSE, 0},
    {"fused", TERN__OPTION_NONE, 0},
    {NULL, TERN__OPTION_NONE, 0}};

#define RULE(name_, attr_of, defaults_)                                                                      \
    {                                                                                                        \
        .name = name_, .kernel = TERN__ADAM, .attr = attr_of, .attr_bytes = sizeof(tern__adam_attr),         \
        .states = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .counts = true, .options = options,           \
        .defaults = &defaults_, .opts_bytes = sizeof(defaults_), .settle = adam_settle                       \
    }
static const tern__optim_rule adam = RULE("adam", adam_attr, adam_defaults),
                              adamw = RULE("adamw", adamw_attr, adamw_defaults);
#undef RULE

tern_optim *tern_adam_new(tern_module *module, const tern_adam_opts *opts, tern_error *err)
{
    return tern__optim_new(__func__, &adam, module, opts, err);
}

tern_optim *tern_adamw_new(tern_module *module, const tern_adam_opts *opts, tern_error *err)
{
    return tern__optim_new(__func__, &adamw, module, opts, err);
}

int tern_adam_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx, const tern_adam_opts *opts,
                        tern_error *err)
{
    return tern__optim_group_add(__func__, TERN__ADAM, optim, belongs, ctx, opts, err);
}
