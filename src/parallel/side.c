/* side.c - the side values, a few numbers of each rank that are reduced with the last bucket. The mean of a
 * flag is above 0 if any rank has set it. */
#include "parallel/ddp.h"

static bool are_doubles(const tern_ddp *ddp)
{
    return ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64;
}

void tern__side_set(const tern_ddp *ddp, int i, double value)
{
    void *side = tern__ddp_window_base(ddp, ddp->side_window);
    if (are_doubles(ddp))
        ((double *)side)[i] = value;
    else
        ((float *)side)[i] = (float)value;
}

double tern__side_get(const tern_ddp *ddp, int i)
{
    const void *side = tern__ddp_window_base(ddp, ddp->side_window);
    return are_doubles(ddp) ? ((const double *)side)[i] : ((const float *)side)[i];
}

void tern__side_write(const tern_ddp *ddp)
{
    const tern__ddp_round *round = &ddp->round;
    tern__side_set(ddp, TERN__SIDE_COUNTS, round->loss && round->used && round->samples > 0);
    tern__side_set(ddp, TERN__SIDE_ASKED, ddp->seal->is_asked);
    for (int k = 0; k < ddp->seal->leaf_count; k++) {
        const tern__leaf *leaf = ddp->seal->leaves[k];
        tern__side_set(ddp, TERN__SIDE_FLAGS + k, round->loss && (leaf->fresh || leaf->pending > 0));
    }
}

/* If no rank has samples, nothing was reduced and the flags are this rank's own, so they do not count. If no
 * rank's backward has reached the model, all ranks keep the values of the last one that did. */
void tern__side_take(const tern_ddp *ddp)
{
    bool is_reduced = tern__ddp_tally(ddp, ddp->round.side_seq)->shares > 0;
    if (ddp->round.is_idle) return;
    ddp->seal->is_asked |= tern__side_get(ddp, TERN__SIDE_ASKED) > 0;
    for (int i = 0; i < ddp->leaf_count; i++) {
        int k = ddp->order[i];
        ddp->seal->leaves[k]->fresh = is_reduced && tern__side_get(ddp, TERN__SIDE_FLAGS + k) > 0;
    }
}
