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

int tern_ddp_normaliser_set(tern_ddp *ddp, double count, tern_error *err)
{
    if (!ddp) return tern__error_set(err, __func__, TERN_E_INVALID, "the ddp is NULL");
    if (ddp->opts.normaliser != TERN_NORMALISER_LOSS)
        return tern__error_set(err, __func__, TERN_E_STATE,
                               "the ddp was made without TERN_NORMALISER_LOSS: every rank counts as 1");
    if (!(count >= 0 && isfinite(count)))
        return tern__error_set(err, __func__, TERN_E_RANGE, "expected a count that is not negative, got %g",
                               count);
    ddp->round.next_count = count;
    return TERN_OK;
}

/* Adds the count of the backward's loss. If this rank does not use the model, the loss may have nothing to do
 * with it. Its count is then added only if the backward is synchronised and nothing has been counted here
 * yet: other ranks may use the model, or there may be gradients here from a backward that the ddp did not
 * see. */
int tern__normaliser_add(tern_ddp *ddp, const tern_tensor *loss, tern_error *err)
{
    ddp->round.loss_weight = 1;
    if (ddp->opts.normaliser != TERN_NORMALISER_LOSS) return TERN_OK;
    bool is_said = !isnan(ddp->round.next_count);
    bool is_beside = ddp->round.active && (!ddp->round.reached || isnan(ddp->round.count));
    double count = is_said ? ddp->round.next_count : tern_loss_normaliser(loss);
    if (!isnan(count)) ddp->round.loss_weight = count;
    ddp->round.next_count = NAN;
    if (!ddp->round.used && !is_said && !(is_beside && count > 0)) return TERN_OK;
    if (isnan(count))
        return tern__error_set(err, "tern_backward", TERN_E_STATE,
                               "the loss comes from %s, which does not say what it was divided by: call "
                               "tern_ddp_normaliser_set first",
                               loss->node->op);
    ddp->round.count = isnan(ddp->round.count) ? count : ddp->round.count + count;
    return TERN_OK;
}

/* Gradients without a count have weight 1, so that they are not taken for those of ignored labels. */
void tern__normaliser_weigh(tern_ddp *ddp)
{
    double count = ddp->opts.normaliser == TERN_NORMALISER_LOSS ? ddp->round.count : 1;
    if (isnan(count)) count = ddp->round.reached;
    ddp->round.has_samples = count > 0;
    ddp->round.share = count / ddp->opts.gradient_predivide_factor;
    ddp->round.weight = ddp->round.has_samples ? ddp->round.share : ddp->round.reached ? 1 : 0;
}
