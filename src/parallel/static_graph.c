/* static_graph.c - checks the promise of static_graph: every backward that uses the model uses the same
 * parameters. */
#include "parallel/ddp.h"

struct tern__ddp_static_graph {
    bool has_first;
    bool *first_used; /* by leaf index: used in the first backward that used any */
};

static bool static_graph_is_on(const tern_ddp *ddp)
{
    return ddp->opts.static_graph;
}

static int static_graph_open(tern_ddp *ddp, tern_error *err)
{
    struct tern__ddp_static_graph *self = ddp->static_graph;
    self->first_used = tern__ddp_alloc(ddp, NULL, (size_t)ddp->seal->leaf_count * sizeof(bool), err);
    return self->first_used ? TERN_OK : TERN_E_MEMORY;
}

static int static_graph_check(tern_ddp *ddp, tern_error *err)
{
    struct tern__ddp_static_graph *self = ddp->static_graph;
    tern__leaf *const *leaves = ddp->seal->leaves;
    if (!ddp->round.used) return TERN_OK;
    for (int k = 0; k < ddp->seal->leaf_count && !self->has_first; k++)
        self->first_used[k] = leaves[k]->pending > 0;
    self->has_first = true;
    int k = ddp->seal->leaf_count - 1; /* the parameter that was registered first */
    while (k >= 0 && (ddp->bucket_of[k] < 0 || self->first_used[k] == (leaves[k]->pending > 0))) k--;
    if (k < 0) return TERN_OK;
    return tern__error_set(
        err, "tern_backward", TERN_E_STATE,
        "static_graph: parameter \"%s\" was %s in the first backward, and is %s in backward "
        "%llu",
        leaves[k]->name, self->first_used[k] ? "used" : "not used", self->first_used[k] ? "not used" : "used",
        (unsigned long long)ddp->round.backward);
}

const tern__ddp_part tern__static_graph_part = {
    TERN__DDP_STATE(static_graph), .is_on = static_graph_is_on,
    .at = {[TERN__DDP_OPEN] = static_graph_open, [TERN__DDP_BEGIN] = static_graph_check}};
