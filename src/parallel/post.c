/* post.c - a work of a ddp on the ddp's own channel. */
#include "parallel/ddp.h"

#include <sched.h>

int tern__ddp_post(tern_ddp *ddp, tern__post *work, tern_error *err)
{
    work->owner = ddp->number;
    work->backward = ddp->backward;
    work->folded = ddp->folded;
    work->shadow = ddp->shadow;
    return ddp->group->backend->post(ddp->channel, work, &ddp->last_seq, err);
}

/* Ranks may share a core. */
int tern__ddp_await(const tern_ddp *ddp, tern__ddp_test test, tern_error *err)
{
    int status = test(ddp, err);
    while (status == TERN_PENDING) {
        status = ddp->group->backend->progress(ddp->channel, err);
        sched_yield();
        if (!status) status = test(ddp, err);
    }
    return status;
}
