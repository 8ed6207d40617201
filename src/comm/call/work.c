/* work.c - tern_work_test and tern_work_wait. */
#include "comm/call/p2p.h"
#include "comm/call/request.h"

static int fail_closed(const tern_work *work, tern_error *err)
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
    if (!group) return fail_closed(work, err);
    int status = tern__group_told(group, work->func, &why);
    if (!status) status = group->root->progress(group, &why);
    if (!work->status) return TERN_OK; /* a later failure is reported by the next call */
    if (!status) status = tern__group_check(group, work->func, &why);
    return status ? tern__call_fail(group, work->func, &why, err) : work->status;
}

int tern_work_wait(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    if (work->is_transfer) return tern__p2p_wait(work, err);
    int status = work->status;
    tern_group *group = work->group;
    if (status && !group) fail_closed(work, err);
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
