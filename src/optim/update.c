/* update.c - one pass of a kernel over the runs of an optimizer's parameters.
 *
 * Parameters, gradients and state are in parallel ranges, so an update is a pass over long runs of memory:
 * neighbours in a range that have a gradient, belong to one group and have made the same number of steps go
 * through the kernel together, including the padding between them, which is zero. */
#include "optim/optim.h"
#include "tensor/number.h"

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
static tern__view update_part(tern_dtype dtype, char *base, size_t offset, int64_t count)
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
    o->g = update_part(range->grad_dtype, range->grads, tern__grad_offset(range, own.begin), count);
    o->p = update_part(range->dtype, range->params, own.begin, count);
    for (int s = 0; s < TERN__OPTIM_STATES; s++) {
        bool kept = s == TERN__OPTIM_MASTER ? has_master : optim->groups[optim->group_of[k]].states & 1u << s;
        if (!kept) continue;
        o->states[s] = update_part(tern__optim_dtype(optim, r), optim->state[s][r], at, count);
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
    if (call->kernel != optim->rule->kernel) call->out[TERN__OPTIM_SUMS] = &o->sums; /* a first pass */
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
    if (kernel != optim->rule->kernel || (factors && factors->ndim == 2))
        give_sections(optim, first, last, own, &o, &call);
    tern__go_to(scope, o.p.data);
    return tern__run(scope, &call);
}
