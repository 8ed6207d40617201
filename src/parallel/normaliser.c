/* normaliser.c - how much this rank counts in the mean.
 *
 * A loss is a mean over the rank's own samples. The mean of those means is that over all samples only if all
 * ranks have as many; so each rank's gradient is weighed with what its loss was divided by, and the sum is
 * divided by all of that: sum(c[r] g[r]) / sum(c[r]). What a loss was divided by stays with its tape entry.
 *
 * A rank whose labels are all ignored has 0 / 0 as its loss. It takes part with zeros of weight 1 and of no
 * share, so that the others still hear which parameters it has used, if it has used any. */
#include "parallel/ddp.h"

#include <tern/loss.h>

#include <math.h>

int tern_ddp_normaliser_set(tern_ddp *ddp, double count, tern_error *err)
{
    if (!ddp) return tern__error_set(err, __func__, TERN_E_INVALID, "the ddp is NULL");
    if (ddp->opts.normaliser != TERN_NORMALISER_LOSS)
        return tern__error_set(err, __func__, TERN_E_STATE,
                               "the ddp was made without TERN_NORMALISER_LOSS: every rank counts as 1");
    if (!(count >= 0 && isfinite(count)))
        return tern__error_set(err, __func__, TERN_E_RANGE, "expected a count that is not negative, got %g",
                               count);
    ddp->next_count = count;
    return TERN_OK;
}

/* A backward that does not use the model on this rank may have any loss. Its samples count only if the
 * backward is synchronised and nothing has been counted here yet: other ranks may use the model, or gradients
 * wait here that the ddp did not see being made. */
int tern__normaliser_add(tern_ddp *ddp, const tern_tensor *loss, tern_error *err)
{
    ddp->loss_weight = 1;
    if (ddp->opts.normaliser != TERN_NORMALISER_LOSS) return TERN_OK;
    bool is_said = !isnan(ddp->next_count), is_beside = ddp->active && (!ddp->reached || isnan(ddp->count));
    double count = is_said ? ddp->next_count : tern_loss_normaliser(loss);
    ddp->next_count = NAN;
    if (!ddp->used && !is_said && !(is_beside && count > 0)) return TERN_OK;
    if (isnan(count))
        return tern__error_set(err, "tern_backward", TERN_E_STATE,
                               "the loss comes from %s, which does not say what it was divided by: call "
                               "tern_ddp_normaliser_set before",
                               loss->node->op);
    ddp->count = isnan(ddp->count) ? count : ddp->count + count;
    ddp->loss_weight = count;
    return TERN_OK;
}

/* Gradients that nobody has counted weigh 1, so that they are not taken for those of ignored labels. */
void tern__normaliser_weigh(tern_ddp *ddp)
{
    double count = ddp->opts.normaliser == TERN_NORMALISER_LOSS ? ddp->count : 1;
    if (isnan(count)) count = ddp->reached;
    ddp->has_samples = count > 0;
    ddp->share = count / ddp->opts.gradient_predivide_factor;
    ddp->weight = ddp->has_samples ? ddp->share : ddp->reached ? 1 : 0;
}
