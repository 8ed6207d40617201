/* messages.c - what is under way between this rank and others for one purpose: to each rank at most one
 * message, and from each one. Its place in the arrays is 2 * rank, that of the one from it the next. */
#include "comm/hosts/hosts.h"

static const char func[] = "tern_group_open";

int tern__messages_open(tern__messages *m, const tern__hosts *hosts, tern_error *err)
{
    size_t most = 2 * (size_t)hosts->group->boot.world;
    m->hosts = hosts;
    m->handles = tern__alloc(most * sizeof(*m->handles), func, err);
    m->is_begun = tern__alloc(most * sizeof(*m->is_begun), func, err);
    return m->handles && m->is_begun ? TERN_OK : TERN_E_MEMORY;
}

void tern__messages_close(tern__messages *m)
{
    if (m->begun) tern__link_give_up(m->hosts->link);
    tern__free(m->handles);
    tern__free(m->is_begun);
}

/* Of one that could not be begun there is nothing to test, and nothing to give up. */
static int note(tern__messages *m, int place, int status)
{
    m->is_begun[place] = !status;
    m->begun += !status;
    return status;
}

int tern__messages_send(tern__messages *m, int rank, int tag, const void *data, size_t bytes, tern_error *err)
{
    const tern__hosts *hosts = m->hosts;
    int place = 2 * rank;
    if (!bytes) return TERN_OK;
    return note(m, place,
                tern__link_send(hosts->link, hosts->group, rank, tag, data, bytes, &m->handles[place], err));
}

int tern__messages_recv(tern__messages *m, int rank, int tag, void *data, size_t bytes, tern_error *err)
{
    const tern__hosts *hosts = m->hosts;
    int place = 2 * rank + 1;
    if (!bytes) return TERN_OK;
    return note(m, place,
                tern__link_recv(hosts->link, hosts->group, rank, tag, data, bytes, &m->handles[place], err));
}

int tern__messages_test(tern__messages *m, tern_error *err)
{
    for (int i = 0; i < 2 * m->hosts->group->boot.world && m->begun; i++) {
        if (!m->is_begun[i]) continue;
        int status = tern__link_test(m->hosts->link, &m->handles[i], err);
        if (status < 0) return status;
        m->is_begun[i] = status == TERN_PENDING;
        m->begun -= !m->is_begun[i];
    }
    return m->begun ? TERN_PENDING : TERN_OK;
}

bool tern__messages_awaits(const tern__messages *m, int rank)
{
    return m->is_begun[2 * rank + 1];
}
