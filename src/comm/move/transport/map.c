/* map.c - the map of a group's ranks and hosts: who is on which host, and at which place. */
#include "comm/move/transport/hosts.h"

static int alloc_map(tern__host_map *map, size_t world, tern_error *err)
{
    map->host = tern__alloc(world * sizeof(*map->host), "tern_group_open", err);
    map->ranks = tern__alloc(world * sizeof(*map->ranks), "tern_group_open", err);
    map->first = tern__alloc((world + 1) * sizeof(*map->first), "tern_group_open", err);
    return map->host && map->ranks && map->first ? TERN_OK : TERN_E_MEMORY;
}

static bool is_same_host(const tern_group *group, int one, int other, bool flat)
{
    if (flat) return one == other;
    return tern__control_host(group->control, tern_group_world_rank(group, one)) ==
           tern__control_host(group->control, tern_group_world_rank(group, other));
}

/* A rank gets the host number of the lowest rank on the same host. */
static void number_hosts(tern__host_map *map, const tern_group *group, bool flat)
{
    for (int rank = 0; rank < group->boot.world; rank++) {
        int like = 0;
        while (like < rank && !is_same_host(group, like, rank, flat)) like++;
        map->host[rank] = like < rank ? map->host[like] : map->count++;
    }
}

static void list_ranks(tern__host_map *map, int world, int own)
{
    int listed = 0;
    map->flows = world;
    for (int host = 0; host < map->count; host++) {
        map->first[host] = listed;
        for (int rank = 0; rank < world; rank++) {
            if (map->host[rank] != host) continue;
            if (rank == own) map->place = listed - map->first[host];
            map->ranks[listed++] = rank;
        }
        map->flows = TERN__MIN(map->flows, listed - map->first[host]);
        map->most = TERN__MAX(map->most, listed - map->first[host]);
    }
    map->first[map->count] = listed;
}

int tern__host_map_make(tern__host_map *map, const tern_group *group, bool flat, tern_error *err)
{
    *map = (tern__host_map){0};
    int status = alloc_map(map, (size_t)group->boot.world, err);
    if (status) return status;
    number_hosts(map, group, flat);
    map->own = map->host[group->boot.rank];
    list_ranks(map, group->boot.world, group->boot.rank);
    return TERN_OK;
}

void tern__host_map_release(tern__host_map *map)
{
    tern__free(map->host);
    tern__free(map->ranks);
    tern__free(map->first);
    *map = (tern__host_map){0};
}
