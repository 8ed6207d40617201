/* lamb.c - LAMB: Adam's direction, with a rate for every parameter in proportion to its norm.
 *
 * A step has two passes. The first updates the moments and sums up the squares of each parameter and of its
 * update. The second updates the parameters, with the ratio of the two norms in their rate. In between, a
 * sharded optimizer's ranks exchange their sums (norm.c). */
#include "optim/optim.h"

#include "tensor/number.h"

#include <math.h>

static const tern_lamb_opts defaults = {.size = sizeof(tern_lamb_opts),
                                        .lr = 1e-3,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-6,
                                        .weight_decay = 0.01,
                                        .max_grad_norm = 1,
                                        .bias_correction = true,
                                        .grad_averaging = true,
                                        .adam_w_mode = true};

tern_lamb_opts tern_lamb_defaults(void)
{
    return defaults;
}

/* ---- the first pass ---- */

static bool square(tern_scope *scope, const tern__view *run, void *ctx)
{
    double **next = ctx;
    tern__view sum = tern__number_view((*next)++);
    return tern__norm_squares(scope, run, NULL, &sum);
}

/* Computes each group's factor from the norm of all gradients; the sums are kept where the trust ratios will
 * be. */
static bool limit(tern_optim *optim, tern_scope *scope)
{
    double *next = optim->norms.factors;
    if (!tern__optim_each_run(optim, scope, square, &next)) return false;
    int64_t runs = next - optim->norms.factors;
    tern__view sums = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){runs, 1});
    sums.data = optim->norms.factors;
    for (int g = 0; g < optim->group_count && runs > 0; g++) {
        const tern__norm_attr attr = {
            .use = TERN__NORM_LIMIT, .p = 2, .most = optim->groups[g].opts.lamb.max_grad_norm};
        tern__view factors = tern__norm_factors_of_group(optim, g);
        if (!tern__norm_decide(scope, &attr, &sums, &factors)) return false;
    }
    return true;
}

/* Computes the moments and sums for this rank's part of a run; the host puts the factors, which it can read,
 * into the attributes. */
static bool lamb_move(tern_optim *optim, tern_scope *scope, int first, int last)
{
    int g = optim->group_of[first];
    tern__optim_attr attr = optim->rule->attr(&optim->groups[g], optim->steps[first] + 1);
    tern__view factors = tern__norm_factors_of_group(optim, g);
    bool on_device = tern__number_is_on_device(factors.data);
    if (!on_device) tern__step_settle(&attr.step, factors.data, NULL);
    if (optim->shard) tern__shard_digest(optim, &attr, sizeof(attr.lamb));
    return tern__optim_run(optim, scope, TERN__LAMB_MOMENTS, first, last, &attr, on_device ? &factors : NULL);
}

static bool has_trust(const tern__optim_group *group)
{
    return group->opts.lamb.use_nvlamb || group->opts.lamb.weight_decay != 0;
}

/* Computes the trust ratio of each parameter of a run, once all its sums are there. */
static bool trust(tern_optim *optim, tern_scope *scope, int first, int last)
{
    const tern__norm_attr attr = {.use = TERN__NORM_TRUST, .p = 2};
    return !has_trust(&optim->groups[optim->group_of[first]]) ||
           tern__norm_decide_leaves(optim, scope, &attr, first, last);
}

static int first_pass(tern_optim *optim, tern_scope *scope, tern_error *err)
{
    if (!limit(optim, scope) || !tern__optim_each_update(optim, scope, lamb_move)) return scope->error.code;
    int status = optim->shard ? tern__shard_sums(optim, err) : TERN_OK;
    if (status) return status;
    return tern__optim_each_update(optim, scope, trust) ? TERN_OK : scope->error.code;
}

/* ---- the rule ---- */

static tern__optim_attr lamb_attr_of(const tern__optim_group *group, int64_t count)
{
    const tern_lamb_opts *o = &group->opts.lamb;
    return (tern__optim_attr){.lamb = {.step = tern__step_attr_make(
                                           group->rate, false, o->adam_w_mode ? 0 : o->weight_decay, count),
                                       .beta1 = o->beta1,
                                       .take = o->grad_averaging ? 1 - o->beta1 : 1,
                                       .beta2 = o->beta2,
                                       .unbias = o->bias_correction,
                                       .eps = o->eps,
                                       .pull = o->adam_w_mode ? o->weight_decay : 0}};
}

static int lamb_check(const char *func, const tern_lamb_opts *o, tern_error *err)
{
    if (!(o->lr >= 0) || !(o->eps >= 0) || !(o->weight_decay >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "lamb: expected lr, eps and weight_decay >= 0, got %g, %g and %g", o->lr,
                               o->eps, o->weight_decay);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "lamb: expected beta1 and beta2 from 0 to below 1, got %g and %g", o->beta1,
                               o->beta2);
    if (!(o->max_grad_norm > 0))
        return tern__error_set(err, func, TERN_E_RANGE, "lamb: expected max_grad_norm > 0, got %g",
                               o->max_grad_norm);
    return TERN_OK;
}

static int lamb_settle(const char *func, tern__optim_group *group, tern_error *err)
{
    group->states = 3;
    return lamb_check(func, &group->opts.lamb, err);
}

static const tern__option options[] = {
    {"bias_correction", TERN__OPTION_BOOL, offsetof(tern_lamb_opts, bias_correction)},
    {"betas", TERN__OPTION_PAIR, offsetof(tern_lamb_opts, beta1)},
    {"eps", TERN__OPTION_REAL, offsetof(tern_lamb_opts, eps)},
    {"weight_decay", TERN__OPTION_REAL, offsetof(tern_lamb_opts, weight_decay)},
    {"grad_averaging", TERN__OPTION_BOOL, offsetof(tern_lamb_opts, grad_averaging)},
    {"max_grad_norm", TERN__OPTION_REAL, offsetof(tern_lamb_opts, max_grad_norm)},
    {"step", TERN__OPTION_STEP, 0},
    {NULL, TERN__OPTION_NONE, 0}};

static const tern__optim_rule rule = {.name = "lamb",
                                      .kernel = TERN__LAMB,
                                      .attr = lamb_attr_of,
                                      .attr_bytes = sizeof(tern__lamb_attr),
                                      .states = {"exp_avg", "exp_avg_sq"},
                                      .counts = true,
                                      .options = options,
                                      .defaults = &defaults,
                                      .opts_bytes = sizeof(defaults),
                                      .settle = lamb_settle,
                                      .first_pass = first_pass,
                                      .has_trust = has_trust};

tern_optim *tern_lamb_new(tern_module *module, const tern_lamb_opts *opts, tern_error *err)
{
    tern_optim *optim = tern__optim_new(__func__, &rule, module, opts, err);
    if (!optim || tern__norms_open(__func__, optim, err) == TERN_OK) return optim;
    tern_optim_free(optim);
    return NULL;
}

int tern_lamb_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx, const tern_lamb_opts *opts,
                        tern_error *err)
{
    return tern__optim_group_add(__func__, TERN__LAMB, optim, belongs, ctx, opts, err);
}
