/* progress.c - moves on whatever a family has in progress. */
#include "comm/call/staging.h"
#include "comm/meet/failure.h"
#include "comm/meet/shm.h"

static int group_progress(const tern_group *group, tern_error *err)
{
    bool has_own = group->state && group->backend->progress;
    int status = has_own ? group->backend->progress(group->state, err) : TERN_OK;
    return status || !group->staging ? status : tern__staging_pump(group->staging, err);
}

int tern__family_progress(tern_group *group, tern_error *err)
{
    tern_group *root = group->root;
    int status = root->shm ? tern__shm_progress(root->shm, err) : tern__failure_check(root, err);
    if (!status && root->incoming) status = root->incoming->progress(root->incoming, err);
    if (!status) status = group_progress(root, err);
    for (const tern_group *g = root->subgroups; g && !status; g = g->next) status = group_progress(g, err);
    return status;
}
