/* post.c - a work of a ddp on the ddp's own channel. */
#include "parallel/ddp.h"

int tern__ddp_post(tern_ddp *ddp, tern__post *work, tern_error *err)
{
    work->owner = ddp->number;
    work->backward = ddp->backward;
    work->folded = ddp->folded;
    work->shadow = ddp->shadow;
    return ddp->group->backend->post(ddp->channel, work, &ddp->last_seq, err);
}
