/* sync_batch_norm.c - batch norm over the batches of all ranks of a group: the two collectives between the
 * kernels of ops/batch_norm.c.
 *
 * Forward: every rank gathers all ranks' counts, means and variances and merges them as parts of one batch,
 *     mean = sum(n_r mean_r) / N,   var = sum(n_r (var_r + (mean_r - mean)^2)) / N,   N = sum(n_r),
 * in rank order, so that all get the same bits, and nothing cancels, as it would in a sum of squares. An
 * empty batch counts 0. Backward: an all_reduce of sum(dy') and sum(dy' xhat). Both go in f64 whatever the
 * data: a few numbers a channel cost nothing beside waiting for each other, and only what comes out is
 * rounded. */
#include "nn/batch_norm.h"

#include "comm/group.h"

#include <tern/parallel.h>

#include <string.h>

/* ---- rows of f64: one of each rank, [count, mean (C), var (C)] ---- */

/* In the host's memory, where groups take them from. */
static tern__saved new_rows(tern_scope *scope, int64_t rows, int64_t length)
{
    tern__view view = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){rows, length});
    tern_device *here = scope->here;
    if (here->backend) scope->here = here->host;
    tern__saved made = tern__temporary(scope, &view);
    scope->here = here;
    return made;
}

/* `count` numbers at `data`. */
static tern__view vector(double *data, int64_t count)
{
    tern__view view = tern__view_make(TERN_F64, TERN__PLAIN, 1, &count);
    view.data = data;
    return view;
}

/* Two vectors to, or from, numbers that follow each other at `data`. */
static bool put(tern_scope *scope, double *data, const tern__view *first, const tern__view *second)
{
    int64_t count = first->shape[0];
    tern__view a = vector(data, count), b = vector(data + count, count);
    return tern__copy(scope, &a, first) && tern__copy(scope, &b, second);
}

static bool take(tern_scope *scope, double *data, const tern__view *first, const tern__view *second)
{
    int64_t count = first->shape[0];
    tern__view a = vector(data, count), b = vector(data + count, count);
    return tern__copy(scope, first, &a) && tern__copy(scope, second, &b);
}

/* ---- forward ---- */

/* The row after the ranks' becomes that of all. */
static void merge(double *rows, int world, int64_t channels)
{
    int64_t length = 1 + 2 * channels;
    double *all = rows + world * length, *mean = all + 1, *var = mean + channels;
    memset(all, 0, (size_t)length * sizeof(*all));
    for (int r = 0; r < world; r++) all[0] += rows[r * length];
    if (all[0] == 0) return;
    for (int r = 0; r < world; r++) {
        const double *row = rows + r * length;
        for (int64_t c = 0; c < channels; c++) mean[c] += row[0] / all[0] * row[1 + c];
    }
    for (int r = 0; r < world; r++) {
        const double *row = rows + r * length;
        for (int64_t c = 0; c < channels; c++) {
            double d = row[1 + c] - mean[c];
            var[c] += row[0] / all[0] * (row[1 + channels + c] + d * d);
        }
    }
}

/* An error in a scope must reach the ranks that wait for it in the group. */
static int check_scope(tern_scope *scope, const tern_group *group)
{
    if (scope->group && tern__group_root(scope->group) == tern__group_root(group)) return TERN_OK;
    return tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_STATE,
                            "a synchronised batch norm in training on a scope of %s: expected the group that "
                            "it was converted with, or one of the same family",
                            scope->is_replica ? "a replica of data_parallel"
                            : scope->group    ? "another group"
                                              : "no group");
}

static int join_stats(const tern__batch_norm_sync *sync, tern_scope *scope, const tern__view *mean,
                      const tern__view *var, int64_t *count)
{
    tern_error err = {0};
    int world = tern_group_size(sync->group), rank = tern_group_rank(sync->group);
    int64_t channels = mean->shape[0], length = 1 + 2 * channels;
    if (check_scope(scope, sync->group)) return scope->error.code;
    tern__saved rows = new_rows(scope, world + 1, length);
    double *data = rows.view.data, *own = data + rank * length, *all = data + world * length;
    if (data && put(scope, own + 1, mean, var)) {
        own[0] = (double)*count;
        if (tern_all_gather(sync->group, own, data, (size_t)length, TERN_F64, &err))
            tern__scope_fail_with(scope, &err);
        else
            merge(data, world, channels);
    }
    if (!scope->error.code && take(scope, all + 1, mean, var)) *count = (int64_t)all[0];
    tern__saved_drop(&rows);
    return scope->error.code;
}

/* ---- backward ---- */

/* A ddp may weigh the ranks' losses (TERN_NORMALISER_LOSS), and does so after backward: gradients here are of
 * this rank's loss alone. What the others' losses say about this rank's data counts by their weights over its
 * own. Of weight 0 nothing counts, not even a NaN. */
static void scale(double *data, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++) data[i] = factor == 0 ? 0 : data[i] * factor;
}

static int join_sums(const tern__batch_norm_sync *sync, tern_scope *scope, const tern__view *sum,
                     const tern__view *product)
{
    tern_error err = {0};
    int64_t channels = sum->shape[0];
    tern__saved both = new_rows(scope, 2, channels);
    double *data = both.view.data;
    if (data && put(scope, data, sum, product)) {
        scale(data, 2 * channels, scope->weight);
        if (tern_all_reduce(sync->group, data, (size_t)(2 * channels), TERN_F64, TERN_SUM, &err))
            tern__scope_fail_with(scope, &err);
        scale(data, 2 * channels, scope->weight > 0 ? 1 / scope->weight : 0);
        if (!err.code) take(scope, data, sum, product);
    }
    tern__saved_drop(&both);
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
    const tern__batch_norm_sync sync = {group, join_stats, join_sums};
    tern__batch_norm_sync_set(module, &sync);
    return TERN_OK;
}
