/* progress.c - moves on whatever a family has in progress. */
#include "comm/call/staging.h"
#include "comm/meet/failure.h"
#include "comm/meet/shm.h"

static int progress_one(const tern_group *group, tern_error *err)
{
    bool advances = group->state && group->backend->advance;
    int status = advances ? group->backend->advance(group->state, err) : TERN_OK;
    return status || !group->staging ? status : tern__staging_pump(group->staging, err);
}

int tern__group_progress(tern_group *group, tern_error *err)
{
    const tern_group *root = group->root;
    int status = root->incoming ? root->incoming->progress(root->incoming, err) : TERN_OK;
    if (!status) status = progress_one(root, err);
    for (const tern_group *g = root->subgroups; g && !status; g = g->next) status = progress_one(g, err);
    return status;
}

int tern__family_progress(tern_group *group, tern_error *err)
{
    tern_group *root = group->root;
    int status = root->shm ? tern__shm_progress(root->shm, err) : tern__failure_check(root, err);
    return status ? status : tern__group_progress(root, err);
}
