/* unscale.c - unscales an optimizer's gradients before its step. Neighbours in a range that have a gradient
 * go through the kernel together. Parameters without one are left out, because their memory still holds
 * values of an earlier step. */
#include "kernels/loss_scale.h"
#include "optim/optim.h"
#include "tensor/number.h"

bool tern__optim_has_grad(const tern_optim *optim, tern_dtype dtype)
{
    for (int k = 0; k < optim->seal->leaf_count; k++)
        if (tern__optim_is_due(optim, k) && optim->seal->leaves[k]->grad->view.dtype == dtype) return true;
    return false;
}

/* Returns the run of one range that begins with leaf k; *next is the leaf behind it. */
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
    return tern__view_span(first, last);
}

bool tern__optim_each_run(const tern_optim *optim, tern_scope *scope, tern__run_fn visit, void *ctx)
{
    const tern__seal *seal = optim->seal;
    for (int r = 0; r < seal->range_count; r++)
        for (int k = 0, next; k < seal->leaf_count; k = next) {
            next = k + 1;
            if (seal->range_of[k] != r || !tern__optim_is_due(optim, k)) continue;
            tern__view run = run_of(optim, k, &next);
            if (!visit(scope, &run, ctx)) return false;
        }
    return true;
}

/* The operations on a run; those that are NULL are left out. */
typedef struct change {
    const double *factor, *drop;
    double *bad;
    bool any; /* there was a run */
} change;

static bool change_run(tern_scope *scope, const tern__view *run, void *ctx)
{
    change *c = ctx;
    tern__view factor, drop, bad = tern__number_view(c->bad);
    const tern__view *given = tern__number_operand(c->factor, &factor),
                     *dropped = tern__number_operand(c->drop, &drop);
    tern__unscale_attr attr = {given ? 1 : *c->factor};
    bool stays = !given && !dropped && attr.factor == 1;
    c->any = true;
    if (stays && !c->bad) return true;
    tern__call call = {.kernel = TERN__UNSCALE,
                       .in = {run, given, dropped},
                       .out = {stays ? NULL : run, c->bad ? &bad : NULL},
                       .add = {false, true},
                       .attr = &attr};
    tern__go_to(scope, run->data);
    return tern__run(scope, &call);
}

bool tern__optim_unscale(tern_optim *optim, tern_scope *scope, const double *factor, double *bad, bool *any)
{
    change c = {.factor = factor, .bad = bad};
    bool fine = tern__optim_each_run(optim, scope, change_run, &c);
    *any = c.any;
    return fine;
}

bool tern__optim_rescale(tern_optim *optim, tern_scope *scope, const double *factor)
{
    change c = {.factor = factor, .drop = optim->skip ? optim->skips.verdict : NULL};
    return tern__optim_each_run(optim, scope, change_run, &c);
}

void tern__optim_forget(tern_optim *optim)
{
    for (int k = 0; k < optim->seal->leaf_count; k++)
        if (optim->group_of[k] >= 0) optim->seal->leaves[k]->fresh = false;
}

void tern__optim_skip(tern_optim *optim)
{
    optim->skip = false;
    optim->is_scaled = false;
    tern__optim_forget(optim);
}
