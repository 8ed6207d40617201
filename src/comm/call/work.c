/* work.c - what a family has in progress: what moves it on, and tern_work_test and tern_work_wait. */
#include "comm/call/p2p.h"
#include "comm/call/request.h"
#include "comm/meet/failure.h"
#include "comm/meet/shm.h"

/* ---- progress ---- */

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

/* ---- works ---- */

static int fail_work_closed(const tern_work *work, tern_error *err)
{
    return tern__error_set(err, work->func, work->status, "the work was not done when its group was closed");
}

int tern_work_test(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    if (work->is_transfer) return tern__p2p_test(work, err);
    if (work->status == TERN_OK) return TERN_OK;
    tern_group *group = work->group;
    if (!group) return fail_work_closed(work, err);
    int status = tern__group_told(group, work->func, &why);
    if (!status) status = tern__staging_pump(group->staging, &why);
    if (!work->status) return TERN_OK; /* a later failure is reported by the next call */
    if (!status) status = tern__group_check(group, work->func, &why);
    if (!status) status = group->root->progress(group, &why);
    return status ? tern__call_fail(group, work->func, &why, err) : work->status;
}

int tern_work_wait(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    if (work->is_transfer) return tern__p2p_wait(work, err);
    int status = work->status;
    tern_group *group = work->group;
    if (status && !group) fail_work_closed(work, err);
    if (status && group) {
        status = tern__group_told(group, work->func, &why);
        if (!status)
            status = tern__staging_finish(group->staging, work, &why);
        else
            tern__staging_drop(group->staging, work, status);
        if (status) tern__call_fail(group, work->func, &why, err);
    }
    tern__work_free(work);
    return status;
}
