/* overflow.c - finds out whether a step's gradients have overflowed. Under a ddp the gradients are equal on
 * all ranks when backward returns, so the ranks would come to the same answer, except for parameters that the
 * ddp ignores and for failing memory. A rank that makes a step while the others skip it differs from them for
 * good, so the ranks compare their answers. An answer in a device's memory would have to be waited for: there
 * the ranks compare only if the optimizer has parameters that the ddp ignores. */
#include "amp/amp.h"
#include "comm/group.h"
#include "tensor/number.h"

static bool has_ignored(const tern_optim *optim)
{
    const tern__seal *seal = optim->seal;
    bool ignored = false;
    for (int k = 0; k < seal->leaf_count; k++)
        ignored |= optim->group_of[k] >= 0 && seal->leaves[k]->listener != seal->attached;
    return ignored;
}

/* Returns the group that compares its answers; NULL: this rank decides alone. */
static tern_group *group_of(const tern_optim *optim)
{
    tern_group *group = optim->seal->attached ? optim->seal->group : NULL;
    if (!group || tern_group_size(group) == 1) return NULL;
    return !tern__number_is_on_device(optim->skips.bad) || has_ignored(optim) ? group : NULL;
}

static bool agree(tern_optim *optim, tern_scope *scope)
{
    tern_group *group = group_of(optim);
    tern_error err = {0};
    double most;
    if (!group) return true;
    int status = tern__memory_copy(&most, optim->skips.bad, sizeof(most), &err);
    if (!status) status = tern_all_reduce(group, &most, 1, TERN_F64, TERN_MAX, &err);
    if (!status) status = tern__memory_copy(optim->skips.bad, &most, sizeof(most), &err);
    if (status) tern__scope_fail_with(scope, &err);
    return !status;
}

bool tern__overflow_check(tern_optim *optim, tern_scope *scope, tern__loss_scale *scale,
                          tern__overflow *result)
{
    *result = (tern__overflow){0};
    optim->seal->is_asked = true;
    if (!tern__skips_begin(optim, scope)) return false;
    if (!tern__optim_unscale(optim, scope, &scale->inverse, optim->skips.bad, &result->any)) return false;
    if (!agree(optim, scope)) return false;
    result->is_on_device = tern__number_is_on_device(optim->skips.bad);
    result->found = result->is_on_device || *optim->skips.bad > 0;
    return tern__loss_scale_find(scope, scale, optim->skips.bad);
}
