/* registry.c - the communication back ends, and which one a group gets. */
#include "comm/group.h"

#include <stdio.h>
#include <string.h>

/* What a user may ask for. "mpi" and "gloo": every byte over it. */
static const char *const names[] = {"native", "mpi", "gloo", "native+mpi", "native+gloo"};

/* What is left of `name` behind "WORD" or "WORD+", which go before any: "nccl+native"; NULL: nothing. `name`
 * itself: it does not begin so. */
static const char *skip(const char *name, const char *word)
{
    size_t length = strlen(word);
    if (!name || strncmp(name, word, length) != 0) return name;
    if (name[length] == '+') return name + length + 1;
    return name[length] ? name : NULL;
}

/* The one that moves the host's data, beside "debug" and "nccl". */
static const char *name_behind(const char *name)
{
    return skip(skip(name, "debug"), "nccl");
}

void tern__comm_fronts_add(tern_group *group)
{
    const char *name = group->opts.backend, *rest = skip(name, "debug");
    bool has_debug = rest != name, has_nccl = skip(rest, "nccl") != rest;
    snprintf(group->shown_name, sizeof(group->shown_name), "%s%s%s", has_debug ? "debug+" : "",
             has_nccl ? "nccl+" : "", group->backend_name);
    if (has_debug || has_nccl) group->behind = group->backend;
    if (has_debug) group->backend = &tern__comm_debug;
    group->second = group->backend;
    if (has_nccl) group->backend = &tern__comm_nccl;
}

int tern__comm_check(const char *name, const char *func, tern_error *err)
{
    name = name_behind(name);
    if (!name) return TERN_OK;
    for (size_t i = 0; i < TERN__COUNT(names); i++)
        if (!strcmp(name, names[i])) return TERN_OK;
    return tern__error_set(
        err, func, TERN_E_INVALID,
        "back end \"%s\": expected native, mpi, gloo, native+mpi or native+gloo, or nccl+ or "
        "debug+ and one of them",
        name);
}

/* A rank of another host than the group's first one; -1: all are of one host. */
static int find_stranger(const tern_group *group)
{
    int first = tern__control_host(group->control, tern_group_world_rank(group, 0));
    for (int rank = 1; rank < group->boot.world; rank++)
        if (tern__control_host(group->control, tern_group_world_rank(group, rank)) != first) return rank;
    return -1;
}

static int fail_hosts(const tern_group *group, int stranger, tern_error *err)
{
    char one[128], other[128];
    tern__group_describe(group, 0, one, sizeof(one));
    tern__group_describe(group, stranger, other, sizeof(other));
    return tern__error_set(err, "tern_group_open", TERN_E_UNSUPPORTED,
                           "%s and %s are on different hosts, and the back end \"native\" joins ranks of one "
                           "host only: expected native+mpi, native+gloo, mpi or gloo",
                           one, other);
}

static void take(tern_group *group, const tern__comm_backend *backend, const char *name)
{
    group->backend = backend;
    snprintf(group->backend_name, sizeof(group->backend_name), "%s", name);
}

int tern__comm_pick(tern_group *group, tern_error *err)
{
    const char *wish = name_behind(group->opts.backend);
    int stranger = group->boot.world > 1 ? find_stranger(group) : -1;
    bool is_flat = wish && strcmp(wish, "native") && !strchr(wish, '+');
    if (group->boot.world == 1)
        take(group, &tern__comm_self, "self");
    else if (stranger < 0 && !is_flat)
        take(group, &tern__comm_native, "native");
    else if (wish && !strcmp(wish, "native"))
        return fail_hosts(group, stranger, err);
    else
        take(group, &tern__comm_hosts, wish ? wish : group->root->boot.mpi ? "native+mpi" : "native+gloo");
    return TERN_OK;
}
