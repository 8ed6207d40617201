/* failure.c - a family's first error: who has failed, and what a failed call does.
 *
 * A peer's failure arrives through the memory that the ranks of a host share and through the control plane.
 * The record in shared memory takes precedence: it has the code, and all ranks of the host report it with the
 * same text. A failure that came through the control plane alone (a death) is copied there.
 *
 * A rank that fails may lose its core, or its life, at any moment, and its peers must not wait for the rest
 * of its text. So each rank has a record of its own, and writes it whole before it offers it as the first. */
#include "comm/meet/failure.h"

#include "base/text.h"
#include "comm/launch/presence.h"
#include "comm/meet/shm.h"
#include "comm/sys.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the family's first failure ---- */

/* While another thread of this rank still writes its record there may be none yet: then it is the event. */
static int read_record(const tern__shm *shm, const tern_error *event, tern_error *err)
{
    unsigned by = atomic_load(&shm->state->aborted);
    const tern__waiter *first = by ? tern__shm_waiter(shm, (int)by - 1) : NULL;
    if (!first) return tern__error_set(err, "tern_group", event->code, "%s", event->text);
    return tern__error_set(err, "tern_group", first->code, "%s", first->failure);
}

static void write_record(const tern__shm *shm, int code, const char *text)
{
    tern__shm_state *state = shm->state;
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    unsigned none = 0;
    if (atomic_load(&state->aborted) || atomic_exchange(&own->has_failed, 1)) return;
    own->code = code;
    snprintf(own->failure, sizeof(own->failure), "%s", text);
    if (atomic_compare_exchange_strong(&state->aborted, &none, 1 + (unsigned)shm->rank)) tern__shm_wake(shm);
}

/* This rank's own error is returned as it is and not copied, because its text does not name the rank. */
int tern__failure_check(const tern_group *group, tern_error *err)
{
    const tern_group *root = group->root;
    const tern__shm *shm = root->shm;
    bool is_healthy = !root->control || tern__control_is_healthy(root->control);
    if (is_healthy && !(shm && atomic_load(&shm->state->aborted))) return TERN_OK;
    const tern_error *own = &root->error;
    if (own->code) return tern__error_set(err, own->func, own->code, "%s", own->text);
    if (!shm) return tern__control_check(root->control, "tern_group", err);
    tern_error event = {0};
    tern__control_check(root->control, "tern_group", &event);
    if (!is_healthy) write_record(shm, event.code, event.text);
    return read_record(shm, &event, err);
}

int tern__failure_set(const tern_group *group, int code, const char *text, tern_error *err)
{
    const tern__shm *shm = group->root->shm;
    if (shm) write_record(shm, code, text);
    int status = tern__failure_check(group, err);
    return status ? status : tern__error_set(err, "tern_group", code, "%s", text);
}

int tern__failure_set_in(const tern_group *group, int code, const char *text, tern_error *err)
{
    char full[TERN_ERROR_TEXT], where[TERN__GROUP_TEXT];
    tern__group_text(group, where, sizeof(where));
    tern__message_format(full, sizeof(full) - strlen(where), "%s", text);
    strcat(full, where);
    return tern__failure_set(group, code, full, err);
}

int tern__failure_forget(tern_error *err)
{
    if (err) *err = (tern_error){0};
    return TERN_OK;
}

/* ---- the group's sticky error ---- */

static int check_fork(const tern_group *root, const char *func, tern_error *err)
{
    if (*root->mark) return TERN_OK;
    return tern__error_set(err, func, TERN_E_FORKED,
                           "the group belongs to process %d, this is its forked child %d", root->pid,
                           (int)getpid());
}

int tern__group_told(const tern_group *group, const char *func, tern_error *err)
{
    const tern_error *error = &group->root->error;
    int status = check_fork(group->root, func, err);
    if (status) return status;
    return error->code ? tern__error_set(err, func, error->code, "%s", error->text) : TERN_OK;
}

/* Makes a failure that the control plane knows of the group's own. */
static void group_learn(tern_group *group)
{
    tern_error why = {0};
    if (!group->root->error.code && *group->root->mark && tern__failure_check(group, &why))
        tern__group_fail(group, &why);
}

int tern__group_check(tern_group *group, const char *func, tern_error *err)
{
    if (group->control && !tern__control_is_healthy(group->control)) group_learn(group);
    return tern__group_told(group, func, err);
}

/* A caller that sees the failure may free the buffers of pending works. A peer's message may still arrive, so
 * from here on the mover touches no memory. */
int tern__group_fail(tern_group *group, const tern_error *err)
{
    tern_group *root = group->root;
    if (root->error.code || check_fork(root, NULL, NULL)) return err->code;
    root->error = *err;
    tern__presence_fail(err->code);
    if (group->control) tern__control_abort(group->control, err->code, err->text);
    if (root->incoming) root->incoming->stop(root->incoming);
    return err->code;
}

void tern_group_abort(tern_group *group, int code, const char *text)
{
    tern_error why = {0};
    if (!group) return;
    tern__error_set(&why, __func__, code < 0 ? code : TERN_E_PEER, "%s", text ? text : "aborted");
    tern__group_fail(group, &why);
}
