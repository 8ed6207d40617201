/* join.c - ranks with unequal numbers of batches.
 *
 * A rank that has run out of batches becomes a shadow: it posts, with weight 0, what the other ranks post in
 * a backward, and so learns when they have done one. The works themselves tell every rank which ranks were
 * shadows, so the ranks that still have batches need no additional communication. The round in which all
 * ranks were shadows is the last. Every rank has seen every round, so all know which rank has the latest
 * model. */
#include "parallel/ddp.h"

#include "base/opts.h"
#include "nn/batch_norm.h"

tern_join_opts tern_join_defaults(void)
{
    return (tern_join_opts){.size = sizeof(tern_join_opts)};
}

/* ---- rounds ---- */

/* Shadows one backward of the other ranks; *left = the number of ddps that still had an active rank in it. */
static int shadow_round(tern_ddp *first, int *left, tern_error *err)
{
    int status = TERN_OK;
    *left = 0;
    for (tern_ddp *ddp = first; ddp && !status; ddp = tern__ddp_next(ddp))
        if (!ddp->over) status = tern__reducer_shadow(ddp, err);
    for (tern_ddp *ddp = first; ddp && !status; ddp = tern__ddp_next(ddp)) {
        if (ddp->over) continue;
        status = tern__reducer_finish(ddp, err);
        *left += !ddp->over;
    }
    return status;
}

/* Names the lowest shadow of a round that had active ranks; this rank was a shadow, too. */
static int fail_early(const tern_ddp *ddp, tern_error *err)
{
    const tern__tally *tally = tern__ddp_tally(ddp, ddp->round.side_seq);
    int rank = 0;
    while (!tally->shadow[rank]) rank++;
    return tern__error_set(err, "tern_ddp_join", TERN_E_STATE,
                           "rank %d ran out of inputs after backward %llu",
                           tern_group_world_rank(ddp->group, rank), (unsigned long long)ddp->round.backward);
}

static int check_early(const tern_ddp *first, tern_error *err)
{
    for (const tern_ddp *ddp = first; ddp; ddp = tern__ddp_next(ddp))
        if (!ddp->over) return fail_early(ddp, err);
    return TERN_OK;
}

/* A sharded or scaled optimizer needs this rank in every step: the other ranks would wait for its slice or
 * its answer, or go on with a scale that it does not have. */
static int check_optimizers(const tern_ddp *first, const tern_join_opts *opts, tern_error *err)
{
    for (const tern_ddp *ddp = first; ddp && !opts->after_backward; ddp = tern__ddp_next(ddp)) {
        bool is_asked = ddp->seal->is_asked && tern_group_size(ddp->group) > 1;
        if (ddp->seal->blocks || is_asked)
            return tern__error_set(err, "tern_ddp_join", TERN_E_STATE,
                                   "the optimizer of %s is %s: pass an after_backward that steps it",
                                   ddp->module->kind, ddp->seal->blocks ? "sharded" : "stepped by a scaler");
    }
    return TERN_OK;
}

/* Checks the optimizers in every round: a rank that has had no batch at all learns only from the other ranks'
 * backward that they use a scaler. */
static int shadow_all(tern_ddp *first, const tern_join_opts *opts, tern_error *err)
{
    for (int left = 1; left;) {
        int status = shadow_round(first, &left, err);
        if (!status) status = check_optimizers(first, opts, err);
        if (!status && opts->throw_on_early_termination) status = check_early(first, err);
        if (!status && left && opts->after_backward) status = opts->after_backward(opts->ctx, err);
        if (status) return status;
    }
    return TERN_OK;
}

/* ---- the end ---- */

/* Copies the last active rank's model, and the number of its last backward, to all ranks. Rank 0 will send
 * its choices again, because shadows have missed them. */
static int settle(tern_ddp *ddp, tern_error *err)
{
    tern__ddp_choices_resend(ddp);
    int status = tern__state_copy(ddp, ddp->last_active, err);
    if (status) return status;
    return tern_broadcast(ddp->group, &ddp->round.backward, 1, TERN_I64, ddp->last_active, err);
}

static int join(tern_ddp *first, const tern_join_opts *opts, tern_error *err)
{
    for (tern_ddp *ddp = first; ddp; ddp = tern__ddp_next(ddp)) {
        ddp->shadow = true;
        ddp->over = false;
    }
    int status = shadow_all(first, opts, err);
    for (tern_ddp *ddp = first; ddp; ddp = tern__ddp_next(ddp)) {
        ddp->shadow = false;
        if (!status) status = settle(ddp, err);
    }
    return status;
}

/* With synchronised batch norms, the other ranks would wait in their forward for this rank's statistics. */
static int check_batch_norms(const tern_ddp *first, tern_error *err)
{
    for (const tern_ddp *ddp = first; ddp; ddp = tern__ddp_next(ddp))
        if (tern_group_size(ddp->group) > 1 && tern__batch_norm_sync_count(ddp->module))
            return tern__error_set(err, "tern_ddp_join", TERN_E_STATE,
                                   "%s has synchronised batch norms, which need all ranks: go on "
                                   "with empty batches instead of joining",
                                   ddp->module->kind);
    return TERN_OK;
}

int tern_ddp_join(tern_ddp *ddp, const tern_join_opts *user, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    tern_join_opts opts = tern_join_defaults();
    if (!ddp) return tern__error_set(e, __func__, TERN_E_INVALID, "the ddp is NULL");
    tern_ddp *first = tern__ddp_first(ddp->group);
    int status = tern__is_set(e) ? e->code : tern__group_check(ddp->group, __func__, e);
    if (!status) status = tern__opts_read(&opts, sizeof(opts), user, __func__, e);
    if (!status) status = check_optimizers(first, &opts, e);
    if (!status) status = check_batch_norms(first, e);
    if (!status) status = join(first, &opts, e);
    return status ? tern__group_fail(ddp->group, e) : TERN_OK;
}
