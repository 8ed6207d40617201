/* unscale.c - a pass over an optimizer's gradients before its step: neighbours in a range that have one go
 * through the kernel together. Others must not: what lies in their place is of a step before. */
#include "kernels/unscale.h"
#include "optim/optim.h"

bool tern__optim_has_grad(const tern_optim *optim, tern_dtype dtype)
{
    for (int k = 0; k < optim->seal->leaf_count; k++)
        if (tern__optim_is_due(optim, k) && optim->seal->leaves[k]->grad->view.dtype == dtype) return true;
    return false;
}

/* Of one range, from leaf k on; *next: behind the run. */
static tern__view run_of(const tern_optim *optim, int k, int *next)
{
    const tern__seal *seal = optim->seal;
    const tern__view *first = &seal->leaves[k]->grad->view, *last = first;
    int r = seal->range_of[k];
    for (*next = k + 1; *next < seal->leaf_count; ++*next) {
        if (seal->range_of[*next] != r) continue;
        if (!tern__optim_is_due(optim, *next)) break;
        last = &seal->leaves[*next]->grad->view;
    }
    const char *end = (const char *)last->data + tern__view_bytes(last);
    int64_t count = (end - (const char *)first->data) / (int64_t)tern_dtype_bytes(first->dtype);
    tern__view run = tern__view_make(first->dtype, TERN__PLAIN, 1, &count);
    run.data = first->data;
    return run;
}

static bool unscale(tern_scope *scope, const tern__view *run, double factor, double *bad)
{
    double found = 0;
    tern__unscale_attr attr = {factor};
    tern__view count = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    count.data = &found;
    tern__call call = {
        .kernel = TERN__UNSCALE, .in = {run}, .out = {factor != 1 ? run : NULL, &count}, .attr = &attr};
    if (!tern__run(scope, &call)) return false;
    *bad += found;
    return true;
}

bool tern__optim_unscale(tern_optim *optim, tern_scope *scope, double factor, double *bad, bool *any)
{
    const tern__seal *seal = optim->seal;
    *any = false;
    for (int r = 0; r < seal->range_count; r++)
        for (int k = 0, next; k < seal->leaf_count; k = next) {
            next = k + 1;
            if (seal->range_of[k] != r || !tern__optim_is_due(optim, k)) continue;
            tern__view run = run_of(optim, k, &next);
            if (!unscale(scope, &run, factor, bad)) return false;
            *any = true;
        }
    return true;
}

bool tern__optim_rescale(tern_optim *optim, tern_scope *scope, double factor)
{
    double bad = 0;
    bool any;
    return factor == 1 || tern__optim_unscale(optim, scope, factor, &bad, &any);
}

void tern__optim_forget(tern_optim *optim)
{
    for (int k = 0; k < optim->seal->leaf_count; k++)
        if (optim->group_of[k] >= 0) optim->seal->leaves[k]->fresh = false;
}

void tern__optim_skip(tern_optim *optim)
{
    optim->skip = false;
    optim->grad_scale = 1;
    tern__optim_forget(optim);
}
