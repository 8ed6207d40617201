/* progress.c - moves on whatever a family has in progress. */
#include "comm/move/transport/hosts.h"
#include "comm/call/staging.h"

static int progress_one(const tern_group *group, tern_error *err)
{
    bool advances = group->state && group->backend->advance;
    int status = advances ? group->backend->advance(group->state, err) : TERN_OK;
    return status || !group->staging ? status : tern__staging_pump(group->staging, err);
}

int tern__group_progress(tern_group *group, tern_error *err)
{
    const tern_group *root = group->root;
    int status = root->link ? tern__link_progress(root->link, err) : TERN_OK;
    if (!status) status = progress_one(root, err);
    for (const tern_group *g = root->subgroups; g && !status; g = g->next) status = progress_one(g, err);
    return status;
}
