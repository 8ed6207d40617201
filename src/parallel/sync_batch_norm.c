/* sync_batch_norm.c - batch norm over the batches of all ranks of a group: the two collectives between the
 * kernels of ops/batch_norm.c.
 *
 * Forward: every rank gathers all ranks' counts, means and variances. A kernel merges them as parts of one
 * batch, in rank order, so that all ranks get the same bits; an empty batch counts 0. Backward: an all_reduce
 * of sum(dy') and sum(dy' xhat). Both are in f64 whatever the dtype of the data: a few numbers per channel
 * cost nothing compared with the ranks' waiting for each other, and only the result is rounded. The numbers
 * stay in the memory where the op runs and the host does not read them, so only collectives through the
 * host's memory wait for a device. */
#include "nn/batch_norm.h"

#include "kernels/pointwise.h"
#include "kernels/loss_scale.h"
#include "parallel/ddp.h"

#include <tern/parallel.h>

/* ---- forward ---- */

/* The scope must be of the group's family, so that its errors reach the ranks that wait in the group. */
static int check_scope(tern_scope *scope, const tern_group *group)
{
    if (tern__scope_is_of(scope, group)) return TERN_OK;
    return tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_STATE,
                            "a synchronised batch norm in training on a scope of %s: expected the group that "
                            "it was converted with, or one of the same family",
                            scope->role.is_replica ? "a replica of data_parallel"
                            : scope->group         ? "another group"
                                                   : "no group");
}

static int gather(const tern__batch_norm_sync *sync, tern_scope *scope, const tern__view *rows)
{
    tern_error err = {0};
    int64_t length = rows->shape[1];
    double *data = rows->data;
    if (check_scope(scope, sync->group)) return scope->error.code;
    if (tern_all_gather(sync->group, data + sync->rank * length, data, (size_t)length, TERN_F64, &err))
        tern__scope_fail_with(scope, &err);
    return scope->error.code;
}

/* ---- backward ---- */

/* A ddp may weigh the ranks' losses (TERN_NORMALISER_LOSS). It does so after backward: during backward,
 * gradients are those of this rank's loss alone. So the gradients of other ranks' losses with respect to this
 * rank's data are multiplied by those ranks' weights over its own. With weight 0 nothing counts, not even a
 * NaN. */
static bool scale_sums(tern_scope *scope, const tern__view *sums, double factor)
{
    const tern__unscale_attr attr = {factor};
    tern__call call = {.kernel = TERN__UNSCALE, .in = {sums}, .out = {sums}, .attr = &attr};
    if (factor == 0) return tern__fill(scope, sums, 0);
    return factor == 1 || tern__run(scope, &call);
}

/* Sums of equal numbers have that number as their mean, as a product with 1 / count has not. */
static bool divide(tern_scope *scope, const tern__view *sums, const tern__view *count)
{
    tern__view by = *sums;
    by.data = count->data;
    by.stride[0] = 0;
    const tern__pointwise_attr attr = {0};
    tern__call call = {.kernel = TERN__DIV, .in = {sums, &by}, .out = {sums}, .attr = &attr};
    return tern__run(scope, &call);
}

/* Returns the ddp that will weigh the gradients of the running backward: that of the batch norm's model if
 * the backward reaches its parameters. Otherwise (the model has no ddp, its parameters are frozen, or the ddp
 * is of another family) the first ddp that the backward reaches, or else the family's first. NULL: the family
 * has none. */
static const tern_ddp *weighing_ddp(const tern__batch_norm_sync *sync)
{
    const tern__seal *seal = tern__module_root(sync->module)->tree->seal;
    const tern_ddp *own = seal ? (const tern_ddp *)seal->attached : NULL,
                   *first = tern__ddp_first(sync->group);
    if (own && own->round.is_inside && own->round.used) return own;
    for (const tern_ddp *ddp = first; ddp; ddp = tern__ddp_next(ddp))
        if (ddp->round.used) return ddp;
    return first;
}

static double weight_of(const tern__batch_norm_sync *sync)
{
    const tern_ddp *ddp = weighing_ddp(sync);
    return ddp ? tern__normaliser_loss_weight(ddp) : 1;
}

static int average(const tern__batch_norm_sync *sync, tern_scope *scope, const tern__view *sums,
                   const tern__view *count)
{
    tern_error err = {0};
    double weight = weight_of(sync);
    if (!scale_sums(scope, sums, weight)) return scope->error.code;
    if (tern_all_reduce(sync->group, sums->data, (size_t)sums->shape[0], TERN_F64, TERN_SUM, &err))
        tern__scope_fail_with(scope, &err);
    else if (scale_sums(scope, sums, weight > 0 ? 1 / weight : 0))
        divide(scope, sums, count);
    return scope->error.code;
}

/* ---- convert ---- */

int tern_sync_batch_norm_convert(tern_module *module, tern_group *group, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return e->code;
    if (!module || !module->tree || !group)
        return tern__error_set(e, __func__, TERN_E_INVALID, "the %s is NULL", group ? "module" : "group");
    int status = tern__group_check(group, __func__, e);
    if (status) return status;
    const tern__module_tree *root = tern__module_root(module)->tree;
    bool attached = root->seal && root->seal->attached;
    if (attached || root->precision.set)
        return tern__error_set(e, __func__, TERN_E_STATE, "%s already has %s: " TERN__SETUP_ORDER,
                               module->kind, attached ? "a ddp" : "amp");
    const tern__batch_norm_sync sync = {NULL,   group,  tern_group_size(group), tern_group_rank(group),
                                        gather, average};
    tern__batch_norm_sync_set(module, &sync);
    return TERN_OK;
}
