/* overflow.c - has a step's gradients overflowed? Under a ddp gradients are equal on all ranks when backward
 * returns, and so would be the answer, but for parameters that the ddp ignores, or a memory that fails. A
 * rank that makes a step while the others skip it is never equal to them again: so they ask each other. */
#include "amp/amp.h"
#include "comm/group.h"

/* Those who agree on the answer; NULL: this rank alone. */
static tern_group *group_of(const tern_optim *optim)
{
    tern_group *group = optim->seal->attached ? optim->seal->group : NULL;
    return group && tern_group_size(group) > 1 ? group : NULL;
}

static bool agree(tern_optim *optim, tern_scope *scope, bool *found)
{
    tern_group *group = group_of(optim);
    tern_error err = {0};
    double most = *found;
    if (!group) return true;
    optim->seal->is_asked = true;
    if (tern_all_reduce(group, &most, 1, TERN_F64, TERN_MAX, &err)) tern__scope_fail_with(scope, &err);
    *found = most > 0;
    return !scope->error.code;
}

bool tern__overflow_check(tern_optim *optim, tern_scope *scope, double factor, tern__overflow *result)
{
    double bad = 0;
    *result = (tern__overflow){0};
    if (!tern__optim_unscale(optim, scope, factor, &bad, &result->any)) return false;
    result->found = bad > 0;
    return agree(optim, scope, &result->found);
}
