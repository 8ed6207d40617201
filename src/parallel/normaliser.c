/* normaliser.c - weighs the ranks' gradients by their numbers of samples (TERN_NORMALISER_LOSS).
 *
 * A loss is a mean over the rank's own samples. The mean of these means is the mean over all samples only if
 * all ranks have equally many. So each rank's gradient is weighed by its count c, the number that its loss
 * was divided by, and the sum is divided by the sum of the counts: sum(c[r] g[r]) / sum(c[r]). A loss's tape
 * entry keeps its count.
 *
 * The loss of a rank whose labels are all ignored is 0 / 0. Such a rank takes part with zeros of weight 1 and
 * share 0, so that the others still learn which parameters it has used. */
#include "parallel/ddp.h"

#include <tern/loss.h>

#include <math.h>

struct tern__ddp_normaliser {
    double count;       /* sum of the counts of the round's losses; NAN: none yet */
    double next_count;  /* the next loss's count, set by the user; NAN: not set */
    double loss_weight; /* the running loss's */
};

static bool normaliser_is_on(const tern_ddp *ddp)
{
    return ddp->opts.normaliser == TERN_NORMALISER_LOSS;
}

static int normaliser_open(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    ddp->normaliser->count = ddp->normaliser->next_count = NAN;
    return TERN_OK;
}

int tern_ddp_normaliser_set(tern_ddp *ddp, double count, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!ddp) return tern__error_set(err, __func__, TERN_E_INVALID, "the ddp is NULL");
    if (!ddp->normaliser)
        return tern__error_set(err, __func__, TERN_E_STATE,
                               "the ddp was made without TERN_NORMALISER_LOSS: every rank counts as 1");
    if (!(count >= 0 && isfinite(count)))
        return tern__error_set(err, __func__, TERN_E_RANGE, "expected a count that is not negative, got %g",
                               count);
    ddp->normaliser->next_count = count;
    return TERN_OK;
}

/* Adds the count of the backward's loss. If this rank does not use the model, the loss may have nothing to do
 * with it. Its count is then added only if the backward is synchronised and nothing has been counted here
 * yet: other ranks may use the model, or there may be gradients here from a backward that the ddp did not
 * see. */
static int add_count(tern_ddp *ddp, tern_error *err)
{
    struct tern__ddp_normaliser *self = ddp->normaliser;
    const tern_tensor *loss = ddp->round.loss;
    bool is_said = !isnan(self->next_count);
    bool is_beside = ddp->round.active && (!ddp->round.reached || isnan(self->count));
    double count = is_said ? self->next_count : tern_loss_normaliser(loss);
    self->loss_weight = isnan(count) ? 1 : count;
    self->next_count = NAN;
    if (!ddp->round.used && !is_said && !(is_beside && count > 0)) return TERN_OK;
    if (isnan(count))
        return tern__error_set(err, "tern_backward", TERN_E_STATE,
                               "the loss comes from %s, which does not say what it was divided by: call "
                               "tern_ddp_normaliser_set first",
                               loss->node->op);
    self->count = isnan(self->count) ? count : self->count + count;
    return TERN_OK;
}

/* Gradients without a count count for 1, so that they are not taken for those of ignored labels. */
static int normaliser_begin(tern_ddp *ddp, tern_error *err)
{
    int status = add_count(ddp, err);
    double count = ddp->normaliser->count;
    ddp->round.samples = isnan(count) ? ddp->round.reached : count;
    return status;
}

static int normaliser_take(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    ddp->normaliser->count = NAN;
    return TERN_OK;
}

double tern__normaliser_loss_weight(const tern_ddp *ddp)
{
    return ddp->normaliser ? ddp->normaliser->loss_weight : 1;
}

const tern__ddp_part tern__normaliser_part = {TERN__DDP_STATE(normaliser), .is_on = normaliser_is_on,
                                              .at = {[TERN__DDP_OPEN] = normaliser_open,
                                                     [TERN__DDP_BEGIN] = normaliser_begin,
                                                     [TERN__DDP_TAKE] = normaliser_take}};
