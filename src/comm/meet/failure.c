/* failure.c - a family's first error: who has failed, and what a failed call does. */
#include "comm/move/transport/hosts.h"
#include "comm/call/request.h"

#include <unistd.h>

static int check_fork(const tern_group *root, const char *func, tern_error *err)
{
    if (*root->mark) return TERN_OK;
    return tern__error_set(err, func, TERN_E_FORKED,
                           "the group belongs to process %d, this is its forked child %d", root->pid,
                           (int)getpid());
}

/* Asks the back end first, whose text is the same on all ranks. The back end of a group of one knows of no
 * failure, so the control plane comes second. */
static void learn_failure(tern_group *group)
{
    tern_error why = {0};
    if (group->backend->progress(group->channel, &why) || tern__control_check(group->control, NULL, &why))
        tern__group_fail(group, &why);
}

int tern__group_told(const tern_group *group, const char *func, tern_error *err)
{
    const tern_error *error = &group->root->error;
    int status = check_fork(group->root, func, err);
    if (status) return status;
    return error->code ? tern__error_set(err, func, error->code, "%s", error->text) : TERN_OK;
}

int tern__group_check(tern_group *group, const char *func, tern_error *err)
{
    const tern_group *root = group->root;
    bool is_well = !group->control || tern__control_is_healthy(group->control);
    if (!is_well && !root->error.code && *root->mark) learn_failure(group);
    return tern__group_told(group, func, err);
}

/* A caller that sees the failure may free the buffers of pending works. A peer's message may still arrive, so
 * from here on the transport touches no memory. */
int tern__group_fail(tern_group *group, const tern_error *err)
{
    tern_group *root = group->root;
    if (root->error.code || check_fork(root, NULL, NULL)) return err->code;
    root->error = *err;
    if (group->control) tern__control_abort(group->control, err->code, err->text);
    if (root->link) tern__link_give_up(root->link);
    return err->code;
}

void tern_group_abort(tern_group *group, int code, const char *text)
{
    tern_error why = {0};
    if (!group) return;
    tern__error_set(&why, __func__, code < 0 ? code : TERN_E_PEER, "%s", text ? text : "aborted");
    tern__group_fail(group, &why);
}

int tern__request_fail(tern_group *group, const char *func, tern_error *why, tern_error *err)
{
    why->func = func;
    tern__group_fail(group, why);
    if (err && !err->code) *err = *why;
    return why->code;
}

int tern__request_given(tern_group *group, const char *func, tern_error *err)
{
    if (!group) return tern__error_set(err, func, TERN_E_INVALID, "group is NULL");
    return tern__is_set(err) ? tern__group_fail(group, err) : TERN_OK;
}
