/* optim.c - the code that all optimizers share: groups, and the step.
 *
 * Parameters, gradients and state are in parallel ranges, so an update is a pass over long runs of memory:
 * neighbours in a range that have a gradient, belong to one group and have made the same number of steps go
 * through the kernel together, including the padding between them, which is zero. */
#include "optim/optim.h"
#include "base/opts.h"
#include "tensor/number.h"

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
    }
    memcpy(optim->own, optim->all, sizeof(optim->own));
}

/* Makes room for another group. */
static int make_room(const char *func, tern_optim *optim, tern_error *err)
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
    int status = make_room(func, optim, err);
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

static void leave(tern_optim *optim)
{
    tern_optim **link = &optim->seal->optims;
    while (*link && *link != optim) link = &(*link)->next;
    if (*link) *link = optim->next;
}

void tern_optim_free(tern_optim *optim)
{
    if (!optim) return;
    leave(optim);
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

const tern__option *tern__option_find(const tern__optim_rule *rule, const char *name)
{
    const tern__option *option = rule->options;
    while (option->name && strcmp(option->name, name)) option++;
    return option->name ? option : NULL;
}

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
    if (make_room(func, optim, err)) return TERN_E_MEMORY;
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

/* ---- the step ---- */

tern_device *tern__optim_device(const tern_optim *optim)
{
    const tern__seal *seal = optim->seal;
    for (int r = 0; r < seal->range_count; r++)
        if (seal->ranges[r].device && tern__slice_bytes(optim->all[r])) return seal->ranges[r].device;
    return NULL;
}

/* Returns the last leaf of the run that leaf k begins: neighbours in a range that may be updated together. */
static int run_end(const tern_optim *optim, int k)
{
    const tern__seal *seal = optim->seal;
    int last = k;
    for (int next = k + 1; next < seal->leaf_count; next++) {
        if (seal->range_of[next] != seal->range_of[k]) continue;
        if (!tern__optim_is_due(optim, next) || optim->group_of[next] != optim->group_of[k] ||
            optim->steps[next] != optim->steps[k] || (optim->skips.apart && optim->skips.apart[next]))
            break;
        last = next;
    }
    return last;
}

bool tern__optim_each_update(tern_optim *optim, tern_scope *scope, tern__update_fn visit)
{
    const tern__seal *seal = optim->seal;
    for (int r = 0; r < seal->range_count; r++)
        for (int k = 0; k < seal->leaf_count; k++) {
            if (seal->range_of[k] != r || !tern__optim_is_due(optim, k)) continue;
            int last = run_end(optim, k);
            if (!visit(optim, scope, k, last)) return false;
            k = last;
        }
    return true;
}

/* The operands of a kernel call. */
typedef struct operands {
    tern__view g, p, states[TERN__OPTIM_STATES], sections, sums, skip, skipped;
} operands;

/* Views `count` elements of one range. */
static tern__view part(tern_dtype dtype, char *base, size_t offset, int64_t count)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 1, &count);
    view.data = base + offset;
    return view;
}

/* Fills in the gradient, parameter and states for the bytes `own` of leaf k's range. */
static void give_parts(const tern_optim *optim, int k, tern__slice own, operands *o, tern__call *call)
{
    int r = optim->seal->range_of[k];
    const tern__range *range = &optim->seal->ranges[r];
    int64_t count = (int64_t)(tern__slice_bytes(own) / tern_dtype_bytes(range->dtype));
    size_t at = tern__optim_scaled(optim, r, own.begin - optim->own[r].begin);
    bool has_master = tern__optim_has_master(optim, r);
    o->g = part(range->grad_dtype, range->grads, tern__grad_offset(range, own.begin), count);
    o->p = part(range->dtype, range->params, own.begin, count);
    for (int s = 0; s < TERN__OPTIM_STATES; s++) {
        bool kept = s == TERN__OPTIM_MASTER ? has_master : optim->groups[optim->group_of[k]].states & 1u << s;
        if (!kept) continue;
        o->states[s] = part(tern__optim_dtype(optim, r), optim->state[s][r], at, count);
        call->out[1 + s] = &o->states[s];
    }
    call->in[0] = &o->g;
    call->out[0] = has_master ? &o->states[TERN__OPTIM_MASTER] : &o->p;
    call->out[TERN__OPTIM_COPY] = has_master ? &o->p : NULL;
}

/* Fills in the device's verdict and count of skipped steps for leaf k. */
static void give_skips(const tern_optim *optim, int k, operands *o, tern__call *call)
{
    const tern__skips *skips = &optim->skips;
    if (optim->skip) call->in[TERN__OPTIM_SKIP] = tern__number_operand(skips->verdict, &o->skip);
    if (skips->steps) call->in[TERN__OPTIM_SKIPPED] = tern__number_operand(skips->steps + k, &o->skipped);
}

static void give_sections(const tern_optim *optim, int first, int last, tern__slice own, operands *o,
                          tern__call *call)
{
    int section = 0, count = tern__norm_sections(optim, first, last, own, &section);
    o->sections = tern__norm_table(optim, section, count);
    o->sums = tern__norm_sums(optim, section, count);
    call->in[TERN__OPTIM_SECTIONS] = &o->sections;
    if (call->kernel == TERN__LAMB_MOMENTS) call->out[TERN__LAMB_SUMS] = &o->sums;
}

bool tern__optim_run(tern_optim *optim, tern_scope *scope, tern__kernel kernel, int first, int last,
                     const tern__optim_attr *attr, const tern__view *factors)
{
    int r = optim->seal->range_of[first];
    tern__slice run = {optim->seal->offset[first], tern__optim_end(optim, last)},
                own = tern__slice_cut(run, optim->own[r]);
    operands o;
    tern__call call = {.kernel = kernel, .in[TERN__OPTIM_FACTORS] = factors, .attr = attr};
    if (!tern__slice_bytes(own)) return true;
    if (tern__optim_has_master(optim, r) && !tern__masters_follow(optim, scope, first, last)) return false;
    give_parts(optim, first, own, &o, &call);
    give_skips(optim, first, &o, &call);
    if (kernel == TERN__LAMB_MOMENTS || (factors && factors->ndim == 2))
        give_sections(optim, first, last, own, &o, &call);
    tern__go_to(scope, o.p.data);
    return tern__run(scope, &call);
}

double *tern__optim_decay(const tern_optim *optim, tern__optim_group *group)
{
    const tern__option *option = tern__option_find(optim->rule, "weight_decay");
    return option ? (double *)((char *)&group->opts + option->offset) : NULL;
}

/* Returns the attributes of an update that begins with leaf k. LARC has put the weight decay into the
 * gradient. */
static tern__optim_attr attr_of(const tern_optim *optim, int k)
{
    tern__optim_group group = optim->groups[optim->group_of[k]];
    double *decay = optim->larc.size ? tern__optim_decay(optim, &group) : NULL, pull = decay ? *decay : 0;
    if (decay) *decay = 0;
    tern__optim_attr attr = optim->rule->attr(&group, optim->steps[k] + 1);
    if (decay) attr.step.decay = attr.step.scale * pull;
    return attr;
}

static void finish(tern_optim *optim, int first, int last)
{
    const tern__seal *seal = optim->seal;
    for (int k = first; k <= last; k++) {
        if (seal->range_of[k] != seal->range_of[first]) continue;
        optim->versions[k] = ++seal->leaves[k]->packs.version;
        seal->leaves[k]->fresh = false;
        optim->steps[k]++;
    }
}

/* Runs the kernel once over this rank's part of the leaves `first` to `last` of one range. */
static bool update(tern_optim *optim, tern_scope *scope, int first, int last)
{
    int r = optim->seal->range_of[first], g = optim->group_of[first];
    bool has_factors = optim->larc.size || (tern__optim_is_lamb(optim) && tern__lamb_has_trust(optim, g));
    tern__view factors;
    tern__optim_attr attr = attr_of(optim, first);
    if (has_factors) factors = tern__norm_factors_of_leaves(optim);
    if (optim->shard)
        tern__shard_note(optim, r, (tern__slice){optim->seal->offset[first], tern__optim_end(optim, last)},
                         &attr);
    if (!tern__optim_run(optim, scope, optim->rule->kernel, first, last, &attr,
                         has_factors ? &factors : NULL))
        return false;
    finish(optim, first, last);
    return true;
}

/* Computes the factors of updates that depend on norms. */
static int prepare(tern_optim *optim, tern_scope *scope, tern_error *err)
{
    if (!tern__optim_has_norms(optim)) return TERN_OK;
    int status = tern__norms_begin(optim, err);
    if (status) return status;
    if (tern__optim_is_lamb(optim)) return tern__lamb_prepare(optim, scope, err);
    return tern__larc_prepare(optim, scope) ? TERN_OK : scope->error.code;
}

static int step(tern_optim *optim, tern_scope *scope, tern_error *err)
{
    int64_t began = tern__trace_now(scope->trace);
    int status = tern__optim_state_open(optim, "tern_optim_step", err);
    if (!status && optim->shard) status = tern__shard_begin(optim, err);
    if (!status) status = prepare(optim, scope, err);
    if (status) return status;
    if (!tern__skips_count(optim, scope) || !tern__optim_each_update(optim, scope, update))
        return scope->error.code;
    optim->skip = false;
    if (optim->shard) status = tern__shard_exchange(optim, err);
    tern__trace_span(scope->trace, TERN__TRACK_COMPUTE, "optimizer step", began);
    return status;
}

void tern_optim_step(tern_optim *optim, tern_scope *scope)
{
    if (!optim || !scope) return;
    tern_error err = {0};
    if (optim->skip && !tern__number_is_away(optim->skips.verdict) && !scope->error.code) {
        tern__optim_skip(optim);
        return;
    }
    bool failed = scope->error.code || step(optim, scope, &err);
    if (failed && !scope->error.code) tern__scope_fail_with(scope, &err);
    if (failed && optim->shard) tern__shard_fail(optim, &scope->error);
}
