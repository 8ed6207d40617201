/* failure.c - the first failure of a family's ranks on this host, and who has left. */
#include "comm/move/window/native.h"

#include "base/text.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static int read_abort(const tern__native *native, tern_error *err)
{
    tern__lobby *lobby = native->lobby;
    int64_t deadline = tern__deadline(0.1); /* its writer may have been killed while writing it */
    while (atomic_load(&lobby->aborted) == TERN__ABORT_WRITING && tern__now_ns() < deadline) sched_yield();
    if (atomic_load(&lobby->aborted) != TERN__ABORT_WRITTEN)
        return tern__error_set(err, "tern_group", TERN_E_PEER, "a rank was lost while it reported a failure");
    return tern__error_set(err, "tern_group", lobby->code, "%s", lobby->text);
}

/* A peer's failure arrives both through the lobby and through the control plane. The lobby's record takes
 * precedence, because it has the code. A failure that came through the control plane alone (a death) is
 * copied to the lobby, so that all ranks report the same first failure. This rank's own error is returned as
 * it is and not copied, because its text does not name the rank. */
int tern__native_check(const tern__native *native, tern_error *err)
{
    bool is_healthy = tern__control_is_healthy(native->control);
    if (is_healthy && !atomic_load(&native->lobby->aborted)) return TERN_OK;
    const tern_error *own = &native->group->root->error;
    if (own->code) return tern__error_set(err, own->func, own->code, "%s", own->text);
    tern_error event = {0};
    tern__control_check(native->control, "tern_group", &event);
    if (!is_healthy) tern__native_abort(native, event.code, event.text);
    return read_abort(native, err);
}

void tern__native_abort(const tern__native *native, int code, const char *text)
{
    tern__lobby *lobby = native->lobby;
    unsigned none = TERN__ABORT_NONE;
    if (!atomic_compare_exchange_strong(&lobby->aborted, &none, TERN__ABORT_WRITING)) return;
    lobby->code = code;
    snprintf(lobby->text, sizeof(lobby->text), "%s", text);
    atomic_store(&lobby->aborted, TERN__ABORT_WRITTEN);
    tern__lobby_ring(lobby);
}

int tern__native_fail(const tern__native *native, int code, const char *text, tern_error *err)
{
    char full[TERN_ERROR_TEXT], where[128];
    tern__group_text(native->group, where, sizeof(where));
    tern__message_format(full, sizeof(full) - strlen(where), "%s", text);
    strcat(full, where);
    tern__native_abort(native, code, full);
    return tern__native_check(native, err);
}

bool tern__native_has_left(const tern__native *native, int rank)
{
    const tern__channel *first = native->first;
    return tern__group_has_left(native->group, rank) || (first && tern__channel_is_closed(first, rank));
}

int tern__native_pardon(tern_error *err)
{
    if (err) *err = (tern_error){0};
    return TERN_OK;
}
