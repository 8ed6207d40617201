/* wait.c - a host's waits in NCCL. While it waits, a rank advances everything that its peers may wait for. A
 * long wait is told to the peers, and one that takes too long ends with an error that says what they do. */
#include "comm/move/nccl/nccl.h"

#include "base/text.h"
#include "comm/move/window/native.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* ---- what a wait is for ---- */

/* Returns [world] the ranks that the goal waits for, valid until the next call. */
static const bool *find_awaited(const tern__nccl *nccl, const tern__nccl_goal *goal)
{
    const tern__bootstrap *boot = &nccl->group->boot;
    for (int rank = 0; rank < boot->world; rank++)
        nccl->awaited[rank] = goal->peer < 0 ? rank != boot->rank : rank == goal->peer;
    return nccl->awaited;
}

/* Writes "NCCL to begin all_reduce of 8 f32, sum (work 2) in the group of ranks 0, 2". */
static void goal_text(const tern__nccl *nccl, const tern__nccl_goal *goal, char *text, size_t size)
{
    char where[TERN__GROUP_TEXT];
    tern__group_in_text(nccl->group, where, sizeof(where));
    snprintf(text, size, "NCCL %s%s", goal->what, where);
}

void tern__nccl_say(const tern__nccl *nccl, const tern__nccl_goal *goal)
{
    char text[TERN__LAST_TEXT];
    if (!nccl->group->control) return;
    goal_text(nccl, goal, text, sizeof(text));
    tern__wait_say(nccl->group, text, find_awaited(nccl, goal), goal->peer < 0);
}

void tern__nccl_forget(const tern__nccl *nccl)
{
    if (nccl->group->control) tern__wait_forget(nccl->group);
}

static int fail_late(const tern__nccl *nccl, const tern__nccl_goal *goal, tern_error *err)
{
    const tern_group *group = nccl->group;
    char what[TERN__LAST_TEXT], text[TERN_ERROR_TEXT];
    goal_text(nccl, goal, what, sizeof(what));
    snprintf(text, sizeof(text), "rank %d waited %g s for %s", tern_group_world_rank(group, group->boot.rank),
             group->opts.timeout_s, what);
    if (group->control) tern__wait_blame(group, what, find_awaited(nccl, goal), text, sizeof(text));
    return tern__error_set(err, "tern_work_wait", TERN_E_TIMEOUT, "%s", text);
}

/* ---- waiting ---- */

static int progress_all(const tern__nccl *nccl, tern_error *err)
{
    const tern__comm_backend *behind = nccl->behind;
    int status = tern__group_progress(nccl->group, err);
    if (!status) status = behind->progress(nccl->order, err);
    for (const tern__nccl_channel *c = nccl->channels; c && !status; c = c->next)
        status = behind->progress(c->behind, err);
    return status;
}

/* NCCL takes about 50 us to enqueue a work, less than a thread takes to sleep and wake up. */
static void pause_since(int64_t began)
{
    const int64_t awake_ns = 200000;
    if (tern__now_ns() - began < awake_ns)
        sched_yield();
    else
        usleep(20);
}

static int await(const tern__nccl *nccl, const tern__nccl_goal *goal, tern_error *err)
{
    int64_t began = tern__now_ns(), late = tern__deadline(tern__wait_late_s(nccl->group)),
            deadline = tern__deadline(nccl->group->opts.timeout_s);
    int status = TERN_PENDING;
    while (status == TERN_PENDING && !(status = progress_all(nccl, err))) {
        status = goal->is_over(goal->of, err);
        if (status != TERN_PENDING) break;
        if (tern__now_ns() > deadline) return fail_late(nccl, goal, err);
        if (tern__now_ns() > late) tern__nccl_say(nccl, goal);
        pause_since(began);
    }
    if (!status) tern__nccl_forget(nccl);
    return status;
}

int tern__nccl_await(const tern__nccl *nccl, const tern__nccl_goal *goal, tern_error *err)
{
    tern_error why = {0};
    int status = goal->is_over(goal->of, &why);
    if (status == TERN_PENDING) status = await(nccl, goal, &why);
    return status ? tern__error_set(err, why.func, status, "%s", why.text) : TERN_OK;
}
