/* step.c - an optimizer's step: norms first where updates depend on them, then the updates, then the exchange
 * between the ranks of a shard. */
#include "optim/optim.h"
#include "tensor/number.h"

/* Returns the attributes of an update that begins with leaf k. LARC has put the weight decay into the
 * gradient. */
static tern__optim_attr step_attr_of(const tern_optim *optim, int k)
{
    tern__optim_group group = optim->groups[optim->group_of[k]];
    double *decay = optim->larc.size ? tern__optim_decay(optim, &group) : NULL, pull = decay ? *decay : 0;
    if (decay) *decay = 0;
    tern__optim_attr attr = optim->rule->attr(&group, optim->steps[k] + 1);
    if (decay) attr.step.decay = attr.step.scale * pull;
    return attr;
}

static void step_finish(tern_optim *optim, int first, int last)
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
    bool has_factors =
        optim->larc.size || (optim->rule->first_pass && optim->rule->has_trust(&optim->groups[g]));
    tern__view factors;
    tern__optim_attr attr = step_attr_of(optim, first);
    if (has_factors) factors = tern__norm_factors_of_leaves(optim);
    if (optim->shard)
        tern__shard_note(optim, r, (tern__slice){optim->seal->offset[first], tern__optim_end(optim, last)},
                         &attr);
    if (!tern__optim_run(optim, scope, optim->rule->kernel, first, last, &attr,
                         has_factors ? &factors : NULL))
        return false;
    step_finish(optim, first, last);
    return true;
}

/* Computes the factors of updates that depend on norms. */
static int step_prepare(tern_optim *optim, tern_scope *scope, tern_error *err)
{
    if (!optim->rule->first_pass && !optim->larc.size) return TERN_OK;
    int status = tern__norms_begin(optim, err);
    if (status) return status;
    if (optim->rule->first_pass) return optim->rule->first_pass(optim, scope, err);
    return tern__larc_prepare(optim, scope) ? TERN_OK : scope->error.code;
}

static int step_make(tern_optim *optim, tern_scope *scope, tern_error *err)
{
    int64_t began = tern__trace_now(scope->trace);
    int status = tern__optim_state_open(optim, NULL, "tern_optim_step", err);
    if (!status && optim->shard) status = tern__shard_begin(optim, err);
    if (!status) status = step_prepare(optim, scope, err);
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
    if (optim->skip && !tern__number_is_on_device(optim->skips.verdict) && !scope->error.code) {
        tern__optim_skip(optim);
        return;
    }
    bool failed = scope->error.code || step_make(optim, scope, &err);
    if (failed && !scope->error.code) tern__scope_fail_with(scope, &err);
    if (failed && optim->shard) tern__shard_fail(optim, &scope->error);
}
