/* wait.c - a host's waits in NCCL. */
#include "comm/move/nccl/nccl.h"

#include "base/text.h"
#include "comm/meet/wait.h"

#include <stdio.h>
#include <string.h>

typedef struct goal {
    tern__goal goal;
    const tern__nccl *nccl;
    const tern__nccl_goal *of;
    int status;
    tern_error *err;
} goal;

/* Sets ranks[r], [world], for the ranks that the goal waits for. */
static void find_awaited(const tern__nccl *nccl, const tern__nccl_goal *of, bool *ranks)
{
    const tern__bootstrap *boot = &nccl->group->boot;
    for (int rank = 0; rank < boot->world; rank++)
        ranks[rank] = of->peer < 0 ? rank != boot->rank : rank == of->peer;
}

void tern__nccl_say(const tern__nccl *nccl, const tern__nccl_goal *of)
{
    const tern_group *group = nccl->group;
    char text[TERN__LAST_TEXT], where[TERN__GROUP_TEXT];
    if (!group->control) return;
    tern__group_in_text(group, where, sizeof(where));
    snprintf(text, sizeof(text), "NCCL %s%s", of->what, where);
    find_awaited(nccl, of, group->awaited);
    tern__wait_say(group, text, group->awaited, of->peer < 0);
}

void tern__nccl_forget(const tern__nccl *nccl)
{
    if (nccl->group->control) tern__wait_forget(nccl->group);
}

/* An error ends the wait, too. */
static bool goal_is_over(const tern__goal *until)
{
    goal *g = (goal *)(uintptr_t)until;
    if (g->status == TERN_PENDING) g->status = g->of->is_over(g->of->of, g->err);
    return g->status != TERN_PENDING;
}

static void goal_describe(const tern__goal *until, bool *ranks, char *what, size_t size)
{
    const goal *g = (const goal *)until;
    snprintf(what, size, "NCCL %s", g->of->what);
    find_awaited(g->nccl, g->of, ranks);
}

/* NCCL takes about 50 us to enqueue a work, and wakes nobody. */
int tern__nccl_await(const tern__nccl *nccl, const tern__nccl_goal *of, tern_error *err)
{
    tern_error why = {0};
    goal until = {.goal = {.is_met = goal_is_over,
                           .describe = goal_describe,
                           .is_message = of->peer >= 0,
                           .is_polled = true,
                           .verb = "for"},
                  .nccl = nccl,
                  .of = of,
                  .status = TERN_PENDING,
                  .err = &why};
    if (goal_is_over(&until.goal))
        return why.code ? tern__error_set(err, why.func, why.code, "%s", why.text) : TERN_OK;
    int status = tern__wait(nccl->group, &until.goal, err);
    if (status || !until.status) return status;
    status = tern__failure_check(nccl->group, err);
    return status ? status : tern__error_set(err, why.func, until.status, "%s", why.text);
}
