/* failure.c - the first failure of a family that spans hosts. */
#include "comm/move/transport/hosts.h"

#include "base/text.h"
#include "comm/move/window/native.h"

#include <stdio.h>
#include <string.h>

int tern__hosts_check(const tern__hosts *hosts, tern_error *err)
{
    const tern_group *root = hosts->group->root;
    if (tern__hosts_lobby(hosts)) return tern__native_check(tern__hosts_lobby(hosts), err);
    if (tern__control_is_healthy(root->control)) return TERN_OK;
    if (root->error.code)
        return tern__error_set(err, root->error.func, root->error.code, "%s", root->error.text);
    return tern__control_check(root->control, "tern_group", err);
}

int tern__hosts_abort(const tern__hosts *hosts, int code, const char *text, tern_error *err)
{
    if (tern__hosts_lobby(hosts)) {
        tern__native_abort(tern__hosts_lobby(hosts), code, text);
        return tern__native_check(tern__hosts_lobby(hosts), err);
    }
    int status = tern__hosts_check(hosts, err);
    return status ? status : tern__error_set(err, "tern_group", code, "%s", text);
}

int tern__hosts_fail(const tern__hosts *hosts, int code, const char *text, tern_error *err)
{
    char full[TERN_ERROR_TEXT], where[TERN__GROUP_TEXT];
    tern__group_text(hosts->group, where, sizeof(where));
    tern__message_format(full, sizeof(full) - strlen(where), "%s", text);
    strcat(full, where);
    return tern__hosts_abort(hosts, code, full, err);
}
