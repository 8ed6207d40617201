/* static_graph.c - checks the promise of static_graph: every backward that uses the model uses the same
 * parameters. */
#include "parallel/ddp.h"

static void remember(tern_ddp *ddp)
{
    for (int k = 0; k < ddp->seal->leaf_count; k++) ddp->first_used[k] = ddp->seal->leaves[k]->pending > 0;
    ddp->has_first = true;
}

static int fail(const tern_ddp *ddp, int k, tern_error *err)
{
    bool before = ddp->first_used[k];
    return tern__error_set(
        err, "tern_backward", TERN_E_STATE,
        "static_graph: parameter \"%s\" was %s in the first backward, and is %s in backward "
        "%llu",
        ddp->seal->leaves[k]->name, before ? "used" : "not used", before ? "not used" : "used",
        (unsigned long long)ddp->round.backward);
}

int tern__static_graph_check(tern_ddp *ddp, tern_error *err)
{
    if (!ddp->opts.static_graph || !ddp->round.used) return TERN_OK;
    if (!ddp->has_first) remember(ddp);
    int k = ddp->seal->leaf_count - 1; /* the parameter that was registered first */
    while (k >= 0 && (ddp->bucket_of[k] < 0 || ddp->first_used[k] == (ddp->seal->leaves[k]->pending > 0)))
        k--;
    return k >= 0 ? fail(ddp, k, err) : TERN_OK;
}
