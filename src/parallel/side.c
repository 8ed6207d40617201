/* side.c - what rides behind the last bucket's gradients: a rank's loss, whether it counts, and a flag for
 * each leaf that it has used. The mean of the flags tells which leaves anybody has used; the mean loss of
 * those that count is a quotient of two means. */
#include "parallel/ddp.h"
#include "tensor/host.h"

#include <math.h>

enum { LOSS, COUNTS, FLAGS };

static void set(const tern_ddp *ddp, int i, double value)
{
    void *side = ddp->group->backend->window_base(ddp->group->state, ddp->side_window);
    if (ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64)
        ((double *)side)[i] = value;
    else
        ((float *)side)[i] = (float)value;
}

static double get(const tern_ddp *ddp, int i)
{
    const void *side = ddp->group->backend->window_base(ddp->group->state, ddp->side_window);
    return ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64 ? ((const double *)side)[i]
                                                                 : ((const float *)side)[i];
}

/* By what the loss was multiplied. */
static double scale_of(const tern__node *node)
{
    double value;
    if (!node->scale_at) return node->scale;
    return tern__host_item(node->scale_at, &value, NULL) ? NAN : value;
}

void tern__side_write(tern_ddp *ddp, const tern_tensor *loss)
{
    bool counts = loss && ddp->used && ddp->counts;
    set(ddp, LOSS, counts ? tern_item(loss) / scale_of(loss->node) : 0);
    set(ddp, COUNTS, counts);
    for (int k = 0; k < ddp->seal->leaf_count; k++) {
        const tern__leaf *leaf = ddp->seal->leaves[k];
        set(ddp, FLAGS + k, loss && (leaf->fresh || leaf->pending > 0));
    }
}

/* Where no rank has samples nothing was reduced, and each would have kept its own flags. */
void tern__side_take(tern_ddp *ddp)
{
    const tern__tally *tally = ddp->group->backend->tally(ddp->channel, ddp->side_seq);
    if (get(ddp, COUNTS) > 0) ddp->loss_mean = get(ddp, LOSS) / get(ddp, COUNTS);
    for (int i = 0; i < ddp->leaf_count; i++) {
        int k = ddp->order[i];
        ddp->seal->leaves[k]->fresh = tally->shares > 0 && get(ddp, FLAGS + k) > 0;
    }
}
