/* post.c - posts a ddp's works on its channel, and waits for conditions while works go on. */
#include "parallel/ddp.h"

#include <sched.h>

int tern__ddp_post(tern_ddp *ddp, tern__post *work, tern_error *err)
{
    work->owner = ddp->number;
    work->backward = ddp->round.backward;
    work->folded = ddp->round.folded;
    work->shadow = ddp->shadow;
    return ddp->group->backend->post(ddp->channel, work, &ddp->round.last_seq, err);
}

/* Yields between tries, as ranks may share a core. */
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
