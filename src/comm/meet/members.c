/* members.c - a group's own rank and size; translates its ranks to those of the root, which the control plane
 * knows, and asks it about them. */
#include "comm/group.h"

#include <stdio.h>

int tern_group_rank(const tern_group *group)
{
    return group ? group->boot.rank : 0;
}

int tern_group_size(const tern_group *group)
{
    return group ? group->boot.world : 1;
}

int tern_group_local_rank(const tern_group *group)
{
    return group ? group->boot.local_rank : 0;
}

const char *tern_group_backend(const tern_group *group)
{
    return group ? group->shown_name : "self";
}

int tern_group_world_rank(const tern_group *group, int rank)
{
    if (!group || rank < 0 || rank >= group->boot.world) return -1;
    return group->ranks ? group->ranks[rank] : rank;
}

void tern__group_describe(const tern_group *group, int rank, char *text, size_t size)
{
    tern__control_describe(group->control, tern_group_world_rank(group, rank), text, size);
}

void tern__group_text(const tern_group *group, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    if (group->whole) group = group->whole;
    for (int i = 0; group->ranks && i < group->boot.world && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? ", " : "; in the group of ranks ",
                                 group->ranks[i]);
}

void tern__group_in_text(const tern_group *group, char *text, size_t size)
{
    char where[TERN__GROUP_TEXT];
    tern__group_text(group, where, sizeof(where));
    snprintf(text, size, "%s", where + (*where == ';'));
}

bool tern__group_has_left(const tern_group *group, int rank)
{
    return tern__control_has_left(group->control, tern_group_world_rank(group, rank));
}

bool tern__group_is_stopped(const tern_group *group, int rank)
{
    return tern__control_is_stopped(group->control, tern_group_world_rank(group, rank));
}

bool tern__group_is_same_process(const tern_group *group, int rank)
{
    return tern__control_is_same_process(group->control, tern_group_world_rank(group, rank));
}

static uint64_t tag_of(const tern_group *group, uint32_t serial)
{
    return (uint64_t)group->id << 32 | serial;
}

int tern__group_send_fd(const tern_group *group, int rank, uint32_t serial, int fd, tern_error *err)
{
    int peer = tern_group_world_rank(group, rank);
    return tern__control_send_fd(group->control, peer, tag_of(group, serial), fd, err);
}

bool tern__group_lacks_fd(const tern_group *group, int rank, uint32_t serial, uint64_t sent)
{
    int peer = tern_group_world_rank(group, rank);
    return tern__control_lacks_fd(group->control, peer, tag_of(group, serial), sent);
}

int tern__group_recv_fd(const tern_group *group, int rank, uint32_t serial, double timeout_s, int *fd,
                        tern_error *err)
{
    int peer = tern_group_world_rank(group, rank);
    return tern__control_recv_fd(group->control, peer, tag_of(group, serial), timeout_s, fd, err);
}
