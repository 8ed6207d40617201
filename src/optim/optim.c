/* optim.c - an optimizer's life, and its groups of parameters. */
#include "optim/optim.h"
#include "base/opts.h"

#include <math.h>
#include <string.h>

/* ---- life ---- */

/* Puts the parameters under `module` into group 0. */
static void claim(tern_optim *optim, const tern_module *module)
{
    const tern__seal *seal = optim->seal;
    for (int k = 0; k < seal->leaf_count; k++) {
        tern__slice *all = &optim->all[seal->range_of[k]];
        bool ours = tern__leaf_is_under(seal->leaves[k], module);
        optim->group_of[k] = ours ? 0 : -1;
        if (!ours) continue;
        if (!all->end) all->begin = seal->offset[k];
        all->end = tern__optim_end(optim, k);
        if (!optim->device) optim->device = seal->ranges[seal->range_of[k]].device;
    }
    memcpy(optim->own, optim->all, sizeof(optim->own));
}

/* Makes room for another group. */
static int optim_make_room(const char *func, tern_optim *optim, tern_error *err)
{
    size_t size = sizeof(*optim->groups), count = (size_t)optim->group_count;
    void *groups = tern__realloc_array(optim->groups, count * size, (count + 1) * size, func, err);
    if (!groups) return TERN_E_MEMORY;
    optim->groups = groups;
    return TERN_OK;
}

static int open_optim(const char *func, tern_optim *optim, const tern_module *module,
                      const tern__optim_group *group, tern_error *err)
{
    size_t count = (size_t)optim->seal->leaf_count;
    optim->group_of = tern__alloc(count * sizeof(*optim->group_of), func, err);
    optim->steps = tern__alloc(count * sizeof(*optim->steps), func, err);
    optim->versions = tern__alloc(count * sizeof(*optim->versions), func, err);
    if (!optim->group_of || !optim->steps || !optim->versions) return TERN_E_MEMORY;
    claim(optim, module);
    int status = optim_make_room(func, optim, err);
    if (!status) optim->groups[optim->group_count++] = *group;
    if (!status) tern__schedules_apply(optim);
    return status;
}

static tern_optim *new_optim(const char *func, const tern__optim_rule *rule, tern_module *module,
                             const tern__optim_group *group, tern_error *err)
{
    if (!module || !module->tree) {
        tern__error_set(err, func, TERN_E_INVALID, "the module is NULL or was never made");
        return NULL;
    }
    tern__seal *seal = tern__module_seal(module, err);
    tern_optim *optim = seal ? tern__alloc(sizeof(*optim), func, err) : NULL;
    if (!optim) return NULL;
    *optim = (tern_optim){.rule = rule, .seal = seal, .masters = seal->root->tree->precision.masters};
    if (open_optim(func, optim, module, group, err)) {
        tern_optim_free(optim);
        return NULL;
    }
    optim->next = seal->optims;
    seal->optims = optim;
    return optim;
}

/* Adds a group with these options, or with the rule's defaults if they are NULL. */
static int read_group(const char *func, tern__optim_group *group, const tern__optim_rule *rule,
                      const void *opts, tern_error *err)
{
    *group = (tern__optim_group){0};
    memcpy(&group->opts, rule->defaults, rule->opts_bytes);
    int status = tern__opts_read(&group->opts, rule->opts_bytes, opts, func, err);
    group->lr = group->opts.any.lr;
    return status ? status : rule->settle(func, group, err);
}

tern_optim *tern__optim_new(const char *func, const tern__optim_rule *rule, tern_module *module,
                            const void *opts, tern_error *err)
{
    tern__optim_group group;
    if (tern__is_set(err) || read_group(func, &group, rule, opts, err)) return NULL;
    return new_optim(func, rule, module, &group, err);
}

void tern_optim_free(tern_optim *optim)
{
    if (!optim) return;
    tern_optim **link = &optim->seal->optims;
    while (*link && *link != optim) link = &(*link)->next;
    if (*link) *link = optim->next;
    tern__shard_free(optim);
    tern__skips_free(optim);
    tern__norms_free(optim);
    tern__optim_state_drop(optim);
    tern__free(optim->groups);
    tern__free(optim->steps);
    tern__free(optim->versions);
    tern__free(optim->group_of);
    tern__free(optim);
}

/* ---- groups ---- */

static int check_group(const char *func, const tern_optim *optim, tern__kernel kernel,
                       tern_parameter_fn belongs, tern_error *err)
{
    if (!optim || !belongs)
        return tern__error_set(err, func, TERN_E_INVALID, "the optimizer or the function `belongs` is NULL");
    if (optim->rule->kernel != kernel)
        return tern__error_set(err, func, TERN_E_INVALID, "a group of %s for an optimizer that is %s",
                               tern__kernel_name(kernel), optim->rule->name);
    if (optim->begun)
        return tern__error_set(err, func, TERN_E_STATE,
                               "the optimizer has made a step; add all groups before the first");
    return TERN_OK;
}

static int add_group(const char *func, tern_optim *optim, tern_parameter_fn belongs, void *ctx,
                     const tern__optim_group *group, tern_error *err)
{
    const tern__seal *seal = optim->seal;
    int number = optim->group_count, members = 0;
    if (optim_make_room(func, optim, err)) return TERN_E_MEMORY;
    for (int k = seal->leaf_count - 1; k >= 0; k--) {
        const tern__leaf *leaf = seal->leaves[k];
        if (optim->group_of[k] < 0 || !belongs(leaf->name, leaf->parameter, ctx)) continue;
        optim->group_of[k] = number;
        members++;
    }
    if (!members) return tern__error_set(err, func, TERN_E_INVALID, "no parameter belongs to the new group");
    optim->groups[optim->group_count++] = *group;
    tern__schedules_apply(optim);
    return number;
}

int tern__optim_group_add(const char *func, tern__kernel kernel, tern_optim *optim, tern_parameter_fn belongs,
                          void *ctx, const void *opts, tern_error *err)
{
    tern__optim_group group;
    if (tern__is_set(err)) return err->code;
    int status = check_group(func, optim, kernel, belongs, err);
    if (!status) status = read_group(func, &group, optim->rule, opts, err);
    return status ? status : add_group(func, optim, belongs, ctx, &group, err);
}

/* Biases and norms have one dimension at most, unless a norm is over several. */
static bool is_undecayed(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)name;
    (void)ctx;
    const char *kind = parameter->leaf->module->kind;
    return parameter->view.ndim < 2 || strstr(kind, "norm") || !strcmp(kind, "embedding");
}

int tern_optim_no_decay_group_add(tern_optim *optim, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!optim) return tern__error_set(err, __func__, TERN_E_INVALID, "the optimizer is NULL");
    int status = check_group(__func__, optim, optim->rule->kernel, is_undecayed, err);
    if (status) return status;
    tern__optim_group group = optim->groups[0];
    double *decay = tern__optim_decay(optim, &group);
    if (decay) *decay = 0;
    return add_group(__func__, optim, is_undecayed, NULL, &group, err);
}

int tern_optim_group_count(const tern_optim *optim)
{
    return optim ? optim->group_count : 0;
}

static bool has_group(const tern_optim *optim, int group)
{
    return optim && group >= 0 && group < optim->group_count;
}

double tern_optim_lr_get(const tern_optim *optim, int group)
{
    return has_group(optim, group) ? optim->groups[group].rate : NAN;
}

void tern_optim_lr_set(tern_optim *optim, int group, double lr)
{
    if (!has_group(optim, group)) return;
    optim->groups[group].lr = lr;
    tern__schedules_apply(optim);
}

double *tern__optim_decay(const tern_optim *optim, tern__optim_group *group)
{
    const tern__option *option = tern__option_find(optim->rule, "weight_decay");
    return option ? (double *)((char *)&group->opts + option->offset) : NULL;
}
