/* headers.c - the headers that hosts exchange before they transfer anything of a work. A header has the
 * descriptor that the ranks of a host compared, which ranks are shadows, and what is weighted. A host that
 * has all headers knows that all hosts mean the same work.
 *
 * In a small all_reduce the header also carries the host's sum of all elements. Every host then joins all
 * sums itself, in host order, and the work takes the latency of one message. These sums are in f32 for
 * 16-bit elements, because no host knows the weights of the others yet.
 *
 * The headers of several works may be in flight: a host sends its header as soon as its ranks have met in
 * the work. */
#include "comm/move/transport/hosts.h"

#include <stdio.h>
#include <string.h>

/* A host's header. The sum of a small work follows the shadows. */
typedef struct header {
    tern__desc desc;
    double shares;
    uint32_t weighs;   /* a weight is not 0      */
    uint32_t weighted; /* a weight is not 1      */
    uint32_t wants;    /* a rank wants a result  */
    uint8_t shadow[];  /* [ranks of the largest host] */
} header;

static const char func[] = "tern_group_open";

/* ---- life ---- */

static size_t sum_offset(const tern__hosts *hosts)
{
    return tern__align_up(sizeof(header) + (size_t)hosts->map.most, TERN__LINE);
}

static size_t header_bytes(const tern__hosts *hosts)
{
    return sum_offset(hosts) + hosts->small_bytes;
}

size_t tern__headers_room(const tern__hosts *hosts, size_t short_bytes)
{
    size_t offset = sum_offset(hosts), room = short_bytes > offset ? short_bytes - offset : 0;
    return TERN__MIN(room, TERN__SMALL_BYTES) & ~((size_t)TERN__LINE - 1);
}

int tern__headers_open(tern__headers *headers, tern__hosts_channel *channel, tern_error *err)
{
    const tern__hosts *hosts = channel->hosts;
    size_t count = (size_t)hosts->map.count;
    *headers = (tern__headers){.channel = channel};
    headers->data = tern__alloc(count * header_bytes(hosts), func, err);
    headers->sums = tern__alloc(count * sizeof(*headers->sums), func, err);
    if (!headers->data || !headers->sums) return TERN_E_MEMORY;
    for (size_t host = 0; host < count; host++)
        headers->sums[host] = headers->data + host * header_bytes(hosts) + sum_offset(hosts);
    return tern__messages_open(&headers->messages, hosts, err);
}

void tern__headers_close(tern__headers *headers)
{
    tern__messages_close(&headers->messages);
    tern__free(headers->data);
    tern__free(headers->sums);
}

static header *header_of(const tern__headers *headers, int host)
{
    return (header *)(headers->data + (size_t)host * header_bytes(headers->channel->hosts));
}

/* ---- sending ---- */

static bool is_premul(const tern__hosts_work *work)
{
    return work->post.op == TERN_PREMUL_SUM && tern__kind_reduces(work->post.kind);
}

static void write_head(const tern__headers *headers, tern__hosts_work *work, const tern__tally *local)
{
    const tern__hosts *hosts = headers->channel->hosts;
    header *own = header_of(headers, hosts->map.own);
    memset(own, 0, sum_offset(hosts));
    own->desc = work->desc;
    own->shares = local->shares;
    own->weighted = local->weight != NULL || local->shares != hosts->here.boot.world;
    own->weighs = !local->weight;
    own->wants = !local->idle && local->shadows < hosts->here.boot.world;
    for (int place = 0; place < hosts->here.boot.world; place++) {
        own->shadow[place] = local->shadow[place];
        if (local->weight) own->weighs |= local->weight[place] != 0;
    }
    work->is_weighted = own->weighted || is_premul(work);
    if (work->is_small)
        tern__partial_make(hosts, work, local, hosts->map.own, 0,
                           tern__region_count(hosts, work, hosts->map.own), headers->sums[hosts->map.own]);
}

static int exchange_headers(tern__headers *headers, int host, tern_error *err)
{
    const tern__hosts *hosts = headers->channel->hosts;
    int rank = tern__host_rank(&hosts->map, host, hosts->map.place), tag = headers->channel->tag;
    size_t bytes = header_bytes(hosts);
    int status = tern__messages_recv(&headers->messages, rank, tag, header_of(headers, host), bytes, err);
    if (status) return status;
    return tern__messages_send(&headers->messages, rank, tag, header_of(headers, hosts->map.own), bytes, err);
}

int tern__headers_send(tern__headers *headers, tern__hosts_work *work, const tern__tally *local,
                       tern_error *err)
{
    const tern__host_map *map = &headers->channel->hosts->map;
    int status = TERN_OK;
    headers->work = work;
    write_head(headers, work, local);
    for (int i = 1; i < map->count && !status; i++)
        status = exchange_headers(headers, (map->own + i) % map->count, err);
    return status;
}

/* ---- receiving ---- */

static int fail_headers(const tern__headers *headers, uint64_t seq, int one, int other, tern_error *err)
{
    const tern__hosts *hosts = headers->channel->hosts;
    const tern__host_map *map = &hosts->map;
    char text[TERN_ERROR_TEXT];
    tern__desc_differ(&header_of(headers, one)->desc, &header_of(headers, other)->desc,
                      tern_group_world_rank(hosts->group, tern__host_rank(map, one, map->place)),
                      tern_group_world_rank(hosts->group, tern__host_rank(map, other, map->place)), seq, text,
                      sizeof(text));
    return tern__failure_set_in(hosts->group, TERN_E_MISMATCH, text, err);
}

/* Compares all headers with that of the first host whose rank is no shadow, or with the last host's. */
static int compare_headers(const tern__headers *headers, uint64_t seq, tern_error *err)
{
    int like = 0, hosts = headers->channel->hosts->map.count;
    while (like < hosts - 1 && header_of(headers, like)->desc.flags & TERN__SHADOW) like++;
    for (int host = 0; host < hosts; host++)
        if (!tern__desc_is_same(&header_of(headers, host)->desc, &header_of(headers, like)->desc))
            return fail_headers(headers, seq, like, host, err);
    return TERN_OK;
}

/* Adds the hosts' tallies up to the work's. */
static void add_sums(const tern__headers *headers)
{
    const tern__host_map *map = &headers->channel->hosts->map;
    tern__hosts_work *work = headers->work;
    bool *shadow = tern__hosts_work_shadows(headers->channel, work), weighs = false, wants = false;
    work->tally.shares = work->tally.shadows = 0;
    work->is_weighted = false;
    for (int host = 0; host < map->count; host++) {
        const header *h = header_of(headers, host);
        work->tally.shares += h->shares;
        work->is_weighted |= h->weighted;
        weighs |= h->weighs;
        wants |= h->wants;
        for (int place = 0; place < tern__host_size(map, host); place++) {
            shadow[tern__host_rank(map, host, place)] = h->shadow[place];
            work->tally.shadows += h->shadow[place];
        }
    }
    work->tally.idle = !wants && work->tally.shadows < headers->channel->hosts->group->boot.world;
    work->is_weighted |= work->tally.idle;
    work->is_moot = work->is_weighted && (work->tally.idle || !weighs || work->tally.shares == 0);
    if (!is_premul(work)) return;
    work->tally.shares = 1;
    work->is_weighted = true;
    work->is_moot = false;
}

/* If the broadcast's root is a shadow, the highest rank that is none is the source. */
static void find_source(const tern__headers *headers)
{
    tern__hosts_work *work = headers->work;
    const bool *shadow = work->tally.shadow;
    int world = headers->channel->hosts->group->boot.world;
    if (!shadow[work->source]) return;
    for (work->source = world - 1; work->source >= 0 && shadow[work->source];) work->source--;
}

int tern__headers_recv(tern__headers *headers, uint64_t seq, tern_error *err)
{
    int status = tern__messages_test(&headers->messages, err);
    if (!status) status = compare_headers(headers, seq, err);
    if (status) return status;
    add_sums(headers);
    find_source(headers);
    return TERN_OK;
}
