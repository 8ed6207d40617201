/* lamb.c - LAMB: Adam's direction, and for every parameter a rate in proportion to its norm.
 *
 * A step has two passes: the first moves the moments and sums up the squares of each parameter and of its
 * update; the second makes the updates, with the ratio of the two norms in their rate. In between a sharded
 * optimizer's ranks exchange their sums: those of pieces of 4 KiB, which no slice cuts, so that all ranks,
 * and one that is alone, add up the same numbers in the same order. */
#include "optim/optim.h"

#include "base/opts.h"

#include <math.h>

tern_lamb_opts tern_lamb_defaults(void)
{
    return (tern_lamb_opts){.size = sizeof(tern_lamb_opts),
                            .lr = 1e-3,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-6,
                            .weight_decay = 0.01,
                            .max_grad_norm = 1,
                            .bias_correction = true,
                            .grad_averaging = true,
                            .adam_w_mode = true};
}

/* ---- pieces ---- */

/* Counted from where the optimizer's part of the range begins. */
static size_t piece_at(const tern_optim *optim, int r, size_t byte)
{
    return (byte - optim->all[r].begin) / TERN__PIECE;
}

int tern__lamb_pieces(const tern_optim *optim, int k, tern__slice slice, int *piece)
{
    int r = optim->seal->range_of[k];
    tern__slice whole = {optim->seal->offset[k], tern__optim_end(optim, k)},
                part = tern__slice_cut(whole, slice);
    if (!tern__slice_bytes(part)) return 0;
    size_t first = piece_at(optim, r, part.begin), last = piece_at(optim, r, part.end - 1);
    *piece = optim->lamb->first[k] + (int)(first - piece_at(optim, r, whole.begin));
    return (int)(last - first) + 1;
}

/* A rank's pieces of one range lie next to each other. */
static void number_pieces(tern_optim *optim)
{
    tern__lamb *lamb = optim->lamb;
    int unused;
    for (int r = 0; r < optim->seal->range_count; r++)
        for (int k = 0; k < optim->seal->leaf_count; k++) {
            if (optim->seal->range_of[k] != r || optim->group_of[k] < 0) continue;
            lamb->first[k] = lamb->pieces;
            lamb->pieces += tern__lamb_pieces(optim, k, optim->all[r], &unused);
        }
}

static int open_lamb(const char *func, tern_optim *optim, tern_error *err)
{
    size_t leaves = (size_t)optim->seal->leaf_count;
    tern__lamb *lamb = optim->lamb = tern__alloc(sizeof(*lamb), func, err);
    if (!lamb) return TERN_E_MEMORY;
    lamb->first = tern__alloc(leaves * sizeof(*lamb->first), func, err);
    if (!lamb->first) return TERN_E_MEMORY;
    number_pieces(optim);
    size_t bytes = (size_t)lamb->pieces * 2 * sizeof(*lamb->own);
    lamb->sums = lamb->own = tern__memory_new(tern__optim_device(optim), bytes, func, err);
    return lamb->own ? TERN_OK : TERN_E_MEMORY;
}

void tern__lamb_free(tern_optim *optim)
{
    tern__lamb *lamb = optim->lamb;
    if (!lamb) return;
    tern__free(lamb->first);
    tern__memory_free(lamb->own);
    tern__free(lamb);
}

/* ---- the first pass ---- */

static bool square(tern_scope *scope, const tern__view *run, void *ctx)
{
    double **next = ctx;
    return tern__norm_square(scope, run, (*next)++);
}

/* What the norm of all gradients says to each group. */
static bool limit(tern_optim *optim, tern_scope *scope)
{
    double *sums = tern__norm_sums(optim, 0), *next = sums;
    if (!tern__optim_each_run(optim, scope, square, &next)) return false;
    for (int g = 0; g < optim->group_count && next > sums; g++) {
        const tern__norm_attr attr = {
            .use = TERN__NORM_LIMIT, .p = 2, .most = optim->groups[g].opts.lamb.max_grad_norm};
        double *factors = tern__norm_factors_of_group(optim, g);
        if (!tern__norm_decide(scope, &attr, sums, next - sums, 1, factors)) return false;
    }
    return true;
}

/* Moments and sums of this rank's part of leaf k. */
static bool move(tern_optim *optim, tern_scope *scope, int k)
{
    int g = optim->group_of[k], r = optim->seal->range_of[k], piece;
    tern__optim_attr attr = optim->rule->attr(&optim->groups[g], optim->steps[k] + 1);
    const double *factors = tern__norm_take(tern__norm_factors_of_group(optim, g), &attr.step);
    if (optim->shard) tern__shard_digest(optim, &attr, sizeof(attr.lamb));
    tern__slice run = {optim->seal->offset[k], tern__optim_end(optim, k)},
                own = tern__slice_cut(run, optim->own[r]);
    int64_t pieces = tern__lamb_pieces(optim, k, own, &piece);
    if (!pieces) return true;
    size_t lead = TERN__PIECE - (own.begin - optim->all[r].begin) % TERN__PIECE;
    size_t bytes = tern_dtype_bytes(optim->seal->ranges[r].dtype);
    attr.lamb.lead = (double)(TERN__MIN(lead, tern__slice_bytes(own)) / bytes);
    attr.lamb.piece = (double)(TERN__PIECE / bytes);
    tern__view sums = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){pieces, 2});
    sums.data = optim->lamb->sums + 2 * (size_t)piece;
    if (tern__optim_has_master(optim, r) && !tern__masters_follow(optim, scope, k, k)) return false;
    return tern__optim_run(optim, scope, k, own, &attr, factors, &sums);
}

static bool has_trust(const tern_optim *optim, int k)
{
    const tern_lamb_opts *o = &optim->groups[optim->group_of[k]].opts.lamb;
    return o->use_nvlamb || o->weight_decay != 0;
}

/* The ratio of the two norms of leaf k, all of whose sums are there. */
static bool trust(tern_optim *optim, tern_scope *scope, int k)
{
    const tern__norm_attr attr = {.use = TERN__NORM_TRUST, .p = 2};
    int piece = 0, pieces = tern__lamb_pieces(optim, k, optim->all[optim->seal->range_of[k]], &piece);
    return !has_trust(optim, k) || tern__norm_decide(scope, &attr, optim->lamb->sums + 2 * (size_t)piece,
                                                     pieces, 2, tern__norm_factors_of(optim, k));
}

const double *tern__lamb_trust(const tern_optim *optim, int k)
{
    return has_trust(optim, k) ? tern__norm_factors_of(optim, k) : NULL;
}

int tern__lamb_prepare(tern_optim *optim, tern_scope *scope, tern_error *err)
{
    bool fine = limit(optim, scope);
    for (int k = 0; k < optim->seal->leaf_count && fine; k++)
        if (tern__optim_is_due(optim, k)) fine = move(optim, scope, k);
    if (!fine) return scope->error.code;
    int status = optim->shard ? tern__shard_sums(optim, err) : TERN_OK;
    for (int k = 0; k < optim->seal->leaf_count && !status; k++)
        if (tern__optim_is_due(optim, k) && !trust(optim, scope, k)) status = scope->error.code;
    return status;
}

/* ---- the rule ---- */

static tern__optim_attr attr_of(const tern__optim_group *group, int64_t count)
{
    const tern_lamb_opts *o = &group->opts.lamb;
    return (tern__optim_attr){.lamb = {.step = tern__step_attr_make(
                                           group->rate, false, o->adam_w_mode ? 0 : o->weight_decay, count),
                                       .beta1 = o->beta1,
                                       .take = o->grad_averaging ? 1 - o->beta1 : 1,
                                       .beta2 = o->beta2,
                                       .unbias = o->bias_correction,
                                       .eps = o->eps,
                                       .pull = o->adam_w_mode ? o->weight_decay : 0}};
}

static int check(const char *func, const tern_lamb_opts *o, tern_error *err)
{
    if (!(o->lr >= 0) || !(o->eps >= 0) || !(o->weight_decay >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "lamb: expected lr, eps and weight_decay >= 0, got %g, %g and %g", o->lr,
                               o->eps, o->weight_decay);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "lamb: expected beta1 and beta2 from 0 to below 1, got %g and %g", o->beta1,
                               o->beta2);
    if (!(o->max_grad_norm > 0))
        return tern__error_set(err, func, TERN_E_RANGE, "lamb: expected max_grad_norm > 0, got %g",
                               o->max_grad_norm);
    return TERN_OK;
}

static int settle(const char *func, tern__optim_group *group, tern_error *err)
{
    group->states = 3;
    return check(func, &group->opts.lamb, err);
}

static const tern__option options[] = {
    {"bias_correction", TERN__OPTION_BOOL, offsetof(tern_lamb_opts, bias_correction)},
    {"betas", TERN__OPTION_PAIR, offsetof(tern_lamb_opts, beta1)},
    {"eps", TERN__OPTION_REAL, offsetof(tern_lamb_opts, eps)},
    {"weight_decay", TERN__OPTION_REAL, offsetof(tern_lamb_opts, weight_decay)},
    {"grad_averaging", TERN__OPTION_BOOL, offsetof(tern_lamb_opts, grad_averaging)},
    {"max_grad_norm", TERN__OPTION_REAL, offsetof(tern_lamb_opts, max_grad_norm)},
    {"step", TERN__OPTION_STEP, 0},
    {NULL, TERN__OPTION_NONE, 0}};

static const tern__optim_rule rule = {.name = "lamb",
                                      .kernel = TERN__LAMB,
                                      .attr = attr_of,
                                      .attr_bytes = sizeof(tern__lamb_attr),
                                      .states = {"exp_avg", "exp_avg_sq"},
                                      .counts = true,
                                      .options = options,
                                      .settle = settle};

static int read_group(const char *func, tern__optim_group *group, const tern_lamb_opts *opts, tern_error *err)
{
    tern_lamb_opts o = tern_lamb_defaults();
    int status = tern__opts_read(&o, sizeof(o), opts, func, err);
    *group = (tern__optim_group){.opts.lamb = o, .lr = o.lr};
    return status ? status : settle(func, group, err);
}

tern_optim *tern_lamb_new(tern_module *module, const tern_lamb_opts *opts, tern_error *err)
{
    tern__optim_group group;
    if (tern__is_set(err) || read_group(__func__, &group, opts, err)) return NULL;
    tern_optim *optim = tern__optim_new(__func__, &rule, module, &group, err);
    if (!optim || open_lamb(__func__, optim, err) == TERN_OK) return optim;
    tern_optim_free(optim);
    return NULL;
}

int tern_lamb_group_add(tern_optim *optim, tern_parameter_fn belongs, void *ctx, const tern_lamb_opts *opts,
                        tern_error *err)
{
    tern__optim_group group;
    if (tern__is_set(err)) return err->code;
    int status = tern__optim_group_check(__func__, optim, rule.kernel, belongs, err);
    if (!status) status = read_group(__func__, &group, opts, err);
    return status ? status : tern__optim_group_add(__func__, optim, belongs, ctx, &group, err);
}
