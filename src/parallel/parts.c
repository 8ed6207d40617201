/* parts.c - the list of a ddp's parts, and the walk over those that are on. */
#include "parallel/ddp.h"

#include <string.h>

/* microbatches.c completes the sums that compress.c rounds, before staging.c copies them; the means take the
 * opposite way. */
static const tern__ddp_part *const list[TERN__DDP_PARTS] = {
    &tern__choices_part,  &tern__checksum_part,     &tern__buffers_part,    &tern__microbatches_part,
    &tern__compress_part, &tern__staging_part,      &tern__loss_part,       &tern__straggler_part,
    &tern__stats_part,    &tern__static_graph_part, &tern__normaliser_part,
};

static bool is_on(const tern_ddp *ddp, const tern__ddp_part *part)
{
    return !part->is_on || part->is_on(ddp);
}

static int make_state(tern_ddp *ddp, const tern__ddp_part *part, tern_error *err)
{
    void *state = tern__ddp_alloc(ddp, NULL, part->bytes, err);
    memcpy((char *)ddp + part->state, &state, sizeof(state));
    return state ? TERN_OK : TERN_E_MEMORY;
}

static void list_hooks(tern_ddp *ddp, tern__ddp_moment moment)
{
    bool goes_back = moment == TERN__DDP_TAKE || moment == TERN__DDP_CLOSE;
    tern__ddp_hook *next = ddp->hooks[moment];
    for (int i = 0; i < TERN__DDP_PARTS; i++) {
        const tern__ddp_part *part = list[goes_back ? TERN__DDP_PARTS - 1 - i : i];
        if (part->at[moment] && is_on(ddp, part)) *next++ = part->at[moment];
    }
}

int tern__parts_open(tern_ddp *ddp, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < TERN__DDP_PARTS && !status; i++)
        if (list[i]->bytes && is_on(ddp, list[i])) status = make_state(ddp, list[i], err);
    for (int m = 0; m < TERN__DDP_MOMENTS && !status; m++) list_hooks(ddp, m);
    return status ? status : tern__parts_call(ddp, TERN__DDP_OPEN, err);
}

int tern__parts_call(tern_ddp *ddp, tern__ddp_moment moment, tern_error *err)
{
    int status = TERN_OK;
    for (const tern__ddp_hook *hook = ddp->hooks[moment]; *hook && !status; hook++)
        status = (*hook)(ddp, err);
    return status;
}
