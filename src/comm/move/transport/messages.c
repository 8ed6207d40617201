/* messages.c - the messages in flight for one purpose: at most one to each rank and one from each. Receives
 * come first in the arrays and are tested first: once the answers have arrived, the sends that they answer
 * are complete. */
#include "comm/move/transport/hosts.h"

static const char func[] = "tern_group_open";

int tern__messages_open(tern__messages *m, const tern__hosts *hosts, tern_error *err)
{
    size_t most = 2 * (size_t)hosts->group->boot.world;
    m->hosts = hosts;
    m->handles = tern__alloc(most * sizeof(*m->handles), func, err);
    m->is_begun = tern__alloc(most * sizeof(*m->is_begun), func, err);
    return m->handles && m->is_begun ? TERN_OK : TERN_E_MEMORY;
}

static bool is_under_way(const tern__messages *m)
{
    bool is = false;
    for (int i = 0; m->is_begun && i < 2 * m->hosts->group->boot.world; i++) is |= m->is_begun[i];
    return is;
}

void tern__messages_close(tern__messages *m)
{
    if (is_under_way(m)) tern__link_give_up(m->hosts->link);
    tern__free(m->handles);
    tern__free(m->is_begun);
}

/* A message that failed to start is not in flight: there is nothing to test or to give up. */
static int note_begun(tern__messages *m, int place, int status)
{
    m->is_begun[place] = !status;
    return status;
}

int tern__messages_send(tern__messages *m, int rank, int tag, const void *data, size_t bytes, tern_error *err)
{
    const tern__hosts *hosts = m->hosts;
    int place = hosts->group->boot.world + rank;
    if (!bytes) return TERN_OK;
    return note_begun(
        m, place,
        tern__link_send(hosts->link, hosts->group, rank, tag, data, bytes, &m->handles[place], err));
}

int tern__messages_recv(tern__messages *m, int rank, int tag, void *data, size_t bytes, tern_error *err)
{
    const tern__hosts *hosts = m->hosts;
    int place = rank;
    if (!bytes) return TERN_OK;
    return note_begun(
        m, place,
        tern__link_recv(hosts->link, hosts->group, rank, tag, data, bytes, &m->handles[place], err));
}

int tern__messages_test(tern__messages *m, tern_error *err)
{
    tern__link *link = m->hosts->link;
    for (int i = 0; i < 2 * m->hosts->group->boot.world; i++) {
        if (!m->is_begun[i]) continue;
        int status = tern__link_test(link, &m->handles[i], err);
        m->is_begun[i] = status != TERN_OK;
        if (status == TERN_PENDING && !link->awaited) link->awaited = &m->handles[i];
        if (status) return status;
    }
    return TERN_OK;
}

/* Tests the message again: tern__messages_test stops at the first one that is pending. */
static bool is_pending(const tern__messages *m, int place)
{
    tern_error why = {0};
    if (m->is_begun[place]) m->is_begun[place] = tern__link_test(m->hosts->link, &m->handles[place], &why);
    return m->is_begun[place];
}

bool tern__messages_awaits(const tern__messages *m, int rank)
{
    return is_pending(m, rank) || is_pending(m, m->hosts->group->boot.world + rank);
}

int tern__hosts_find_gone(const tern__hosts *hosts, const tern__goal *goal,
                          bool (*awaits)(const tern__goal *goal, int rank))
{
    const tern_group *group = hosts->group;
    for (int rank = 0; rank < group->boot.world; rank++)
        if (rank != group->boot.rank && tern__group_has_left(group, rank) && awaits(goal, rank)) return rank;
    return -1;
}
