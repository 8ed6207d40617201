/* exchange.c - what the hosts say to each other about one work. Every host has equally many ranks that take
 * part, and the rank at place j talks to the ranks at place j of the other hosts about its share of the
 * elements, so that as many flows as possible cross at the same time.
 *
 * First heads go over: what the work is, in the words that ranks of one host compare, who is a shadow, what
 * is weighted. Then, in rounds of as much as the buffers hold, two steps:
 *
 *   partials   of a reduction: to each host the sum over this host's ranks of what belongs to that host, and
 *              from each the same of what belongs to this one; joined in the order of the hosts
 *   results    of what ends on all ranks: to each host what belongs to this one, from each what belongs to it
 *
 * An all_reduce does both, as does nothing else: each host sends and receives 2 (h - 1) / h of the bytes, the
 * least possible, and all ranks have the bits that one of them has computed. */
#include "comm/hosts/hosts.h"

#include "comm/native/native.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { round_bytes = 256 << 10 };        /* of one buffer */
enum { IDLE, HEADS, PARTIALS, RESULTS }; /* what is awaited */

/* What a host says. */
typedef struct head {
    tern__desc desc;
    double shares;
    uint32_t weighs;   /* a weight is not 0      */
    uint32_t weighted; /* a weight is not 1      */
    uint8_t shadow[];  /* [ranks of the largest host] */
} head;

/* ---- life ---- */

int tern__exchange_open(tern__exchange *x, tern__hosts_channel *channel, tern_error *err)
{
    const char *func = "tern_group_open";
    const tern__host_map *map = &channel->hosts->map;
    size_t hosts = (size_t)map->count;
    *x = (tern__exchange){.channel = channel, .buffer_bytes = round_bytes};
    x->head_bytes = tern__align_up(sizeof(head) + (size_t)map->most, TERN__LINE);
    x->heads = tern__alloc(hosts * x->head_bytes, func, err);
    x->partials = tern__alloc(hosts * round_bytes, func, err);
    x->arrivals = tern__alloc(hosts * round_bytes, func, err);
    x->results = tern__alloc(hosts * round_bytes, func, err);
    x->parts = tern__alloc(hosts * sizeof(*x->parts), func, err);
    if (!x->heads || !x->partials || !x->arrivals || !x->results || !x->parts) return TERN_E_MEMORY;
    for (size_t host = 0; host < hosts; host++) x->parts[host] = x->arrivals + host * round_bytes;
    return tern__messages_open(&x->messages, channel->hosts, err);
}

void tern__exchange_close(tern__exchange *x)
{
    tern__messages_close(&x->messages);
    tern__free(x->heads);
    tern__free(x->partials);
    tern__free(x->arrivals);
    tern__free(x->results);
    tern__free(x->parts);
}

/* ---- messages ---- */

static head *head_of(const tern__exchange *x, int host)
{
    return (head *)(x->heads + (size_t)host * x->head_bytes);
}

static char *buffer(const tern__exchange *x, char *buffers, int host)
{
    return buffers + (size_t)host * x->buffer_bytes;
}

static int rank_at(const tern__hosts *hosts, int host)
{
    return tern__host_rank(&hosts->map, host, hosts->map.place);
}

static int send(tern__exchange *x, int host, const void *data, size_t bytes, tern_error *err)
{
    int rank = rank_at(x->channel->hosts, host);
    return tern__messages_send(&x->messages, rank, x->channel->tag, data, bytes, err);
}

static int recv(tern__exchange *x, int host, void *data, size_t bytes, tern_error *err)
{
    int rank = rank_at(x->channel->hosts, host);
    return tern__messages_recv(&x->messages, rank, x->channel->tag, data, bytes, err);
}

/* ---- heads ---- */

static void write_head(const tern__exchange *x, const tern__tally *local, head *own)
{
    const tern__hosts *hosts = x->channel->hosts;
    memset(own, 0, x->head_bytes);
    own->desc = x->work->desc;
    own->shares = local->shares;
    own->weighted = local->weight != NULL || local->shares != hosts->here.boot.world;
    own->weighs = !local->weight;
    for (int place = 0; place < hosts->here.boot.world; place++) {
        own->shadow[place] = local->shadow[place];
        if (local->weight) own->weighs |= local->weight[place] != 0;
    }
}

int tern__exchange_begin(tern__exchange *x, tern__crossing *work, const tern__tally *local, tern_error *err)
{
    const tern__host_map *map = &x->channel->hosts->map;
    int status = TERN_OK;
    x->work = work;
    x->step = HEADS;
    write_head(x, local, head_of(x, map->own));
    for (int host = 0; host < map->count && !status; host++) {
        if (host == map->own) continue;
        status = send(x, host, head_of(x, map->own), x->head_bytes, err);
        if (!status) status = recv(x, host, head_of(x, host), x->head_bytes, err);
    }
    return status;
}

static int fail_mismatch(const tern__exchange *x, int one, int other, tern_error *err)
{
    const tern__hosts *hosts = x->channel->hosts;
    char text[TERN_ERROR_TEXT];
    uint64_t seq = x->channel->crossed + 1;
    tern__desc_differ(&head_of(x, one)->desc, &head_of(x, other)->desc,
                      tern_group_world_rank(hosts->group, rank_at(hosts, one)),
                      tern_group_world_rank(hosts->group, rank_at(hosts, other)), seq, text, sizeof(text));
    return tern__hosts_fail(hosts, TERN_E_MISMATCH, text, err);
}

/* With the first host whose speaker is no shadow, or the last one. */
static int compare_heads(const tern__exchange *x, tern_error *err)
{
    const tern__host_map *map = &x->channel->hosts->map;
    int like = 0;
    while (like < map->count - 1 && head_of(x, like)->desc.flags & TERN__SHADOW) like++;
    for (int host = 0; host < map->count; host++)
        if (!tern__desc_is_same(&head_of(x, host)->desc, &head_of(x, like)->desc))
            return fail_mismatch(x, like, host, err);
    return TERN_OK;
}

static void add_up(tern__exchange *x)
{
    const tern__host_map *map = &x->channel->hosts->map;
    tern__crossing *work = x->work;
    bool *shadow = tern__crossing_shadows(x->channel, work), weighs = false;
    work->tally.shares = work->tally.shadows = 0;
    work->is_weighted = false;
    for (int host = 0; host < map->count; host++) {
        const head *h = head_of(x, host);
        work->tally.shares += h->shares;
        work->is_weighted |= h->weighted;
        weighs |= h->weighs;
        for (int place = 0; place < tern__host_size(map, host); place++) {
            shadow[tern__host_rank(map, host, place)] = h->shadow[place];
            work->tally.shadows += h->shadow[place];
        }
    }
    work->is_moot = work->is_weighted && (!weighs || work->tally.shares == 0);
    if (work->post.op != TERN_PREMUL_SUM || !tern__kind_reduces(work->post.kind)) return;
    work->tally.shares = 1;
    work->is_weighted = true;
    work->is_moot = false;
}

static void find_source(const tern__exchange *x)
{
    tern__crossing *work = x->work;
    const bool *shadow = work->tally.shadow;
    int world = x->channel->hosts->group->boot.world;
    if (!shadow[work->source]) return;
    for (work->source = world - 1; work->source >= 0 && shadow[work->source];) work->source--;
}

/* ---- rounds ---- */

/* What ends on all ranks. */
static bool spreads(const tern__crossing *work)
{
    return work->post.kind != TERN__REDUCE_SCATTER && work->post.kind != TERN__REDUCE;
}

static bool is_silent(const tern__crossing *work)
{
    tern__kind kind = work->post.kind;
    return kind == TERN__BARRIER || kind == TERN__MONITORED_BARRIER || tern__kind_is_move(kind);
}

static uint64_t round_elements(const tern__exchange *x)
{
    return round_bytes / tern_dtype_bytes(tern__partial_dtype(x->channel->hosts, x->work));
}

/* Elements of a host's region in this round, which begin at *first. */
static uint64_t in_round(const tern__exchange *x, int host, uint64_t *first)
{
    uint64_t count = tern__region_count(x->channel->hosts, x->work, host), each = round_elements(x);
    *first = TERN__MIN(x->round * each, count);
    return TERN__MIN(count - *first, each);
}

static uint64_t count_rounds(const tern__exchange *x)
{
    uint64_t most = 0, each = round_elements(x);
    if (x->work->is_moot || is_silent(x->work)) return 0;
    for (int host = 0; host < x->channel->hosts->map.count; host++)
        most = TERN__MAX(most, tern__region_count(x->channel->hosts, x->work, host));
    return (most + each - 1) / each;
}

static int begin_partials(tern__exchange *x, tern_error *err)
{
    const tern__hosts *hosts = x->channel->hosts;
    const tern__tally *local = hosts->here.backend->tally(x->channel->arrive, x->work->arrive);
    size_t size = tern_dtype_bytes(tern__partial_dtype(hosts, x->work));
    uint64_t own_first, own = in_round(x, hosts->map.own, &own_first);
    int status = TERN_OK;
    x->step = PARTIALS;
    for (int host = 0; host < hosts->map.count && !status; host++) {
        uint64_t first, count = in_round(x, host, &first);
        char *to = host == hosts->map.own ? buffer(x, x->arrivals, host) : buffer(x, x->partials, host);
        tern__partial_make(hosts, x->work, local, host, first, count, to);
        if (host == hosts->map.own) continue;
        status = send(x, host, to, count * size, err);
        if (!status) status = recv(x, host, buffer(x, x->arrivals, host), own * size, err);
    }
    return status;
}

/* To all ranks of this host, or to the one that an element belongs to. */
static void keep(const tern__exchange *x, int host, uint64_t first, uint64_t count, const char *result)
{
    const tern__hosts *hosts = x->channel->hosts;
    if (!spreads(x->work))
        tern__region_write(hosts, x->work, host, first, count, TERN__OWNER, result);
    else
        for (int place = 0; place < hosts->here.boot.world; place++)
            tern__region_write(hosts, x->work, host, first, count, place, result);
}

static void join(const tern__exchange *x)
{
    const tern__hosts *hosts = x->channel->hosts;
    int own = hosts->map.own;
    uint64_t first, count = in_round(x, own, &first);
    char *result = buffer(x, x->results, own);
    tern__partial_join(hosts, x->work, x->parts, count, result);
    keep(x, own, first, count, result);
}

/* What was not summed up here lies in the window of the rank that it belongs to. */
static void collect(const tern__exchange *x)
{
    const tern__hosts *hosts = x->channel->hosts;
    int own = hosts->map.own;
    uint64_t first, count = in_round(x, own, &first);
    char *result = buffer(x, x->results, own);
    tern__region_read(hosts, x->work, own, first, count, TERN__OWNER, result);
    keep(x, own, first, count, result);
}

static int begin_results(tern__exchange *x, tern_error *err)
{
    const tern__host_map *map = &x->channel->hosts->map;
    size_t size = tern_dtype_bytes(x->work->post.dtype);
    uint64_t first, own = in_round(x, map->own, &first);
    int status = TERN_OK;
    x->step = RESULTS;
    for (int host = 0; host < map->count && !status; host++) {
        if (host == map->own) continue;
        uint64_t count = in_round(x, host, &first);
        status = send(x, host, buffer(x, x->results, map->own), own * size, err);
        if (!status) status = recv(x, host, buffer(x, x->results, host), count * size, err);
    }
    return status;
}

static void take_results(const tern__exchange *x)
{
    const tern__host_map *map = &x->channel->hosts->map;
    for (int host = 0; host < map->count; host++) {
        uint64_t first, count = in_round(x, host, &first);
        if (host != map->own) keep(x, host, first, count, buffer(x, x->results, host));
    }
}

/* ---- the way ---- */

static int begin_round(tern__exchange *x, tern_error *err)
{
    if (x->round == x->rounds) {
        x->step = IDLE;
        x->work = NULL;
        return TERN_OK;
    }
    if (tern__kind_reduces(x->work->post.kind)) return begin_partials(x, err);
    collect(x);
    return begin_results(x, err);
}

static int end_heads(tern__exchange *x, tern_error *err)
{
    int status = compare_heads(x, err);
    if (status) return status;
    add_up(x);
    find_source(x);
    x->round = 0;
    x->rounds = count_rounds(x);
    return begin_round(x, err);
}

static int end_partials(tern__exchange *x, tern_error *err)
{
    join(x);
    if (spreads(x->work)) return begin_results(x, err);
    x->round++;
    return begin_round(x, err);
}

static int end_results(tern__exchange *x, tern_error *err)
{
    take_results(x);
    x->round++;
    return begin_round(x, err);
}

int tern__exchange_step(tern__exchange *x, tern_error *err)
{
    int status = TERN_OK;
    while (!status && x->step != IDLE) {
        status = tern__messages_test(&x->messages, err);
        if (status) return status;
        switch (x->step) {
        case HEADS: status = end_heads(x, err); break;
        case PARTIALS: status = end_partials(x, err); break;
        default: status = end_results(x, err);
        }
    }
    return status;
}

void tern__exchange_late(const tern__exchange *x, char *text, size_t size)
{
    const tern__hosts *hosts = x->channel->hosts;
    size_t used = 0;
    for (int host = 0; host < hosts->map.count && used < size; host++) {
        char who[128];
        int rank = rank_at(hosts, host);
        if (host == hosts->map.own || (x->step == HEADS && !tern__messages_awaits(&x->messages, rank)))
            continue;
        tern__group_describe(hosts->group, rank, who, sizeof(who));
        used += (size_t)snprintf(text + used, size - used, "; no word from %s", who);
        if (used < size) tern__hosts_say_last(hosts, rank, text + used, size - used);
        used = strlen(text);
    }
}
