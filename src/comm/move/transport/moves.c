/* moves.c - a move, in which every rank has elements for every other rank. Within the host a rank copies them
 * from the giver's window. Between hosts each rank sends and receives its own messages. */
#include "comm/move/transport/hosts.h"

#include <string.h>

static char *give_at(const tern__hosts *hosts, const tern__hosts_work *work, int place, uint64_t from)
{
    const tern__extent *e = work->post.extents;
    char *base = hosts->here.backend->window_at(hosts->here.state, e->window, place);
    return base + e->offset + from * tern_dtype_bytes(work->post.dtype);
}

static void copy_here(const tern__hosts *hosts, const tern__hosts_work *work)
{
    size_t size = tern_dtype_bytes(work->post.dtype);
    for (int place = 0; place < hosts->here.boot.world; place++) {
        const tern__move *take = &work->post.takes[tern__host_rank(&hosts->map, hosts->map.own, place)];
        if (take->count) memcpy(take->to, give_at(hosts, work, place, take->from), take->count * size);
    }
}

static int exchange_moves(tern__messages *m, int tag, const tern__hosts_work *work, int rank, tern_error *err)
{
    const tern__move *take = &work->post.takes[rank], *give = &work->post.gives[rank];
    const char *from = give->count ? give_at(m->hosts, work, m->hosts->map.place, give->from) : NULL;
    size_t size = tern_dtype_bytes(work->post.dtype);
    int status = tern__messages_send(m, rank, tag, from, give->count * size, err);
    return status ? status : tern__messages_recv(m, rank, tag, take->to, take->count * size, err);
}

int tern__moves_begin(tern__messages *m, int tag, const tern__hosts_work *work, tern_error *err)
{
    const tern__hosts *hosts = m->hosts;
    int status = TERN_OK, world = hosts->group->boot.world;
    copy_here(hosts, work);
    for (int i = 1; i < world && !status; i++) {
        int rank = (hosts->group->boot.rank + i) % world;
        if (hosts->map.host[rank] != hosts->map.own) status = exchange_moves(m, tag, work, rank, err);
    }
    return status;
}
