/* work.c - what a family has in progress: what moves it on, and the tests of works and waits for them. */
#include "comm/call/p2p.h"
#include "comm/call/request.h"
#include "comm/meet/failure.h"
#include "comm/meet/shm.h"
#include "comm/sys.h"

#include <math.h>

/* ---- progress ---- */

static int group_progress(const tern_group *group, tern_error *err)
{
    int status = tern__progress_hooks_run(group->hooks, err);
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

int tern_work_timeout_set(tern_work *work, double timeout_s, tern_error *err)
{
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    if (!(timeout_s > 0))
        return tern__error_set(err, __func__, TERN_E_RANGE, "timeout_s is %g, expected more than 0",
                               timeout_s);
    work->timeout_s = timeout_s;
    return TERN_OK;
}

/* A wait for the first of several works, which any of them ends. */
typedef struct any_limit {
    tern__wait_limit limit;
    tern_work *const *works;
    size_t count;
} any_limit;

static bool work_is_over(const tern_work *work)
{
    return (work->is_transfer ? work->transfer.status : work->status) != TERN_PENDING;
}

static bool works_one_is_over(const tern__wait_limit *limit)
{
    const any_limit *any = (const any_limit *)limit;
    for (size_t i = 1; i < any->count; i++)
        if (work_is_over(any->works[i])) return true;
    return false;
}

/* Waits for a work that is pending, with the time-out that it has, until it is done or the limit is
 * reached. */
static int work_wait_limited(tern_work *work, tern__wait_limit *limit, tern_error *err)
{
    tern_group *group = work->group, *root = group->root;
    if (!work->wait_began) work->wait_began = tern__now_ns();
    limit->began = work->wait_began;
    double before = group->opts.timeout_s;
    if (work->timeout_s) group->opts.timeout_s = work->timeout_s;
    root->limit = limit;
    int status =
        work->is_transfer ? tern__p2p_wait_for(work, err) : tern__staging_wait(group->staging, work, err);
    root->limit = NULL;
    group->opts.timeout_s = before;
    return status;
}

/* Returns the status of the first work that is over, or TERN_PENDING. Only the first test makes progress.
 */
static int work_test_any(tern_work *const *works, size_t count, size_t *index, tern_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (i && !work_is_over(works[i])) continue;
        int status = tern_work_test(works[i], err);
        if (status == TERN_PENDING) continue;
        if (index) *index = i;
        return status;
    }
    return TERN_PENDING;
}

static int work_wait_any(tern_work *const *works, size_t count, double timeout_s, size_t *index,
                         tern_error *err)
{
    tern_error why = {0};
    int status = work_test_any(works, count, index, err);
    if (status != TERN_PENDING || !(timeout_s > 0)) return status;
    any_limit any = {
        .limit = {.until = tern__deadline(timeout_s), .is_reached = count > 1 ? works_one_is_over : NULL},
        .works = works,
        .count = count};
    status = work_wait_limited(works[0], &any.limit, &why);
    if (status >= 0) return work_test_any(works, count, index, err);
    if (index) *index = 0;
    return tern__call_fail(works[0]->group, works[0]->func, &why, err);
}

int tern_work_wait_for(tern_work *work, double timeout_s, tern_error *err)
{
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    return work_wait_any(&work, 1, timeout_s, NULL, err);
}

int tern_work_wait_any(tern_work *const *works, size_t count, double timeout_s, size_t *index,
                       tern_error *err)
{
    if (!works || !count) return tern__error_set(err, __func__, TERN_E_INVALID, "no works to wait for");
    for (size_t i = 0; i < count; i++)
        if (!works[i]) return tern__error_set(err, __func__, TERN_E_INVALID, "works[%zu] is NULL", i);
    return work_wait_any(works, count, timeout_s, index, err);
}

void tern_group_wake(tern_group *group)
{
    if (!group) return;
    atomic_store(&group->root->is_woken, true);
    tern__shm_wake(group->root->shm);
}

/* A wait that goes on where limited ones ended, or has a time-out of its own. A wake does not end it. */
static int work_wait_again(tern_work *work, tern_error *err)
{
    tern__wait_limit limit = {.until = tern__deadline(INFINITY), .goes_on = true};
    int status = TERN_PENDING;
    bool is_plain = !work->wait_began && !work->timeout_s;
    while (!is_plain && status == TERN_PENDING) status = work_wait_limited(work, &limit, err);
    return status == TERN_PENDING ? TERN_OK : status;
}

int tern_work_wait(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    if (work->is_transfer) {
        if (work->transfer.status == TERN_PENDING)
            work_wait_again(work, &why); /* a failure is the family's */
        return tern__p2p_wait(work, err);
    }
    int status = work->status;
    tern_group *group = work->group;
    if (status && !group) fail_work_closed(work, err);
    if (status && group) {
        status = tern__group_told(group, work->func, &why);
        if (!status) status = work_wait_again(work, &why);
        if (!status && work->status)
            status = tern__staging_finish(group->staging, work, &why);
        else if (status)
            tern__staging_drop(group->staging, work, status);
        if (status) tern__call_fail(group, work->func, &why, err);
    }
    tern__work_free(work);
    return status;
}
